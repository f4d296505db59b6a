#include "kernels/host/vectorised.h"

#include <cmath>
#include <cstring>

namespace ghostshard::kernels {
namespace {

// The compiler vectorises a sum only if the order of its additions is spelt out: by vector types of 32 bytes. Those of
// 64 it splits through memory where registers are narrower (four times the time, measured), and in a loop that reads
// memory once they are no quicker where registers are wide enough.
using Float4 = float __attribute__((vector_size(16)));
using Float8 = float __attribute__((vector_size(32)));
using Int8 = int32_t __attribute__((vector_size(32)));
using Double4 = double __attribute__((vector_size(32)));

// A macro, not a function: a function that returns a vector would be compiled for the lowest level only.
#define GHOSTSHARD_LOAD(Type, name, from) \
  Type name;                              \
  std::memcpy(&name, from, sizeof(name))

}  // namespace

GHOSTSHARD_VECTORISED double sum_of_squares(const float* x, int64_t n) {
  constexpr int64_t kSums = 8;
  Double4 sums[kSums] = {};
  int64_t i = 0;
  for (; i + 4 * kSums <= n; i += 4 * kSums) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < kSums; ++k) {
      GHOSTSHARD_LOAD(Float4, f, x + i + 4 * k);
      const Double4 d = __builtin_convertvector(f, Double4);
      sums[k] += d * d;
    }
  }
  const Double4 low = (sums[0] + sums[2]) + (sums[4] + sums[6]), high = (sums[1] + sums[3]) + (sums[5] + sums[7]);
  double sum = 0;
  for (int lane = 0; lane < 4; ++lane) sum += low[lane];
  for (int lane = 0; lane < 4; ++lane) sum += high[lane];
  for (; i < n; ++i) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  return sum;
}

double sum_of_squares(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += x[i] * x[i];
  }
  return sum;
}

GHOSTSHARD_VECTORISED void add_to(double* __restrict out, const float* __restrict x, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] += x[j];
  }
}

GHOSTSHARD_VECTORISED void add_to(double* __restrict out, const double* __restrict x, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] += x[j];
  }
}

GHOSTSHARD_VECTORISED void add_product_to(double* __restrict out, const float* __restrict x, const float* __restrict y,
                                          int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] += static_cast<double>(x[j]) * y[j];
  }
}

GHOSTSHARD_VECTORISED void add_product_to(double* __restrict out, const double* __restrict x,
                                          const double* __restrict y, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] += x[j] * y[j];
  }
}

GHOSTSHARD_VECTORISED void add_scaled_to(float* __restrict out, float c, const float* __restrict x, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] += c * x[j];
  }
}

GHOSTSHARD_VECTORISED void add_scaled_to(double* __restrict out, double c, const double* __restrict x, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] += c * x[j];
  }
}

GHOSTSHARD_VECTORISED void add_four_scaled_to(float* __restrict out, const float c[4], const float* const x[4],
                                              int64_t n) {
  const float c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
  const float* __restrict x0 = x[0];
  const float* __restrict x1 = x[1];
  const float* __restrict x2 = x[2];
  const float* __restrict x3 = x[3];
  for (int64_t j = 0; j < n; ++j) {
    float sum = out[j];
    sum += c0 * x0[j];
    sum += c1 * x1[j];
    sum += c2 * x2[j];
    sum += c3 * x3[j];
    out[j] = sum;
  }
}

void add_four_scaled_to(double* out, const double c[4], const double* const x[4], int64_t n) {
  for (int k = 0; k < 4; ++k) {
    add_scaled_to(out, c[k], x[k], n);
  }
}

GHOSTSHARD_VECTORISED void add_row_products(const float* x, const float* y, const float* x_weight,
                                            const float* y_weight, int64_t n, double factor, RowProductSums& sums) {
  Double4 products[4] = {};
  Float8 x_weighted[2] = {}, y_weighted[2] = {};
  const Int8 magnitude = Int8{} + 0x7fffffff;
  int64_t t = 0;
  for (; t + 16 <= n; t += 16) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < 4; ++k) {
      GHOSTSHARD_LOAD(Float4, u, x + t + 4 * k);
      GHOSTSHARD_LOAD(Float4, v, y + t + 4 * k);
      products[k] += __builtin_convertvector(u, Double4) * __builtin_convertvector(v, Double4);
    }
#pragma GCC unroll 2
    for (int64_t k = 0; k < 2; ++k) {
      GHOSTSHARD_LOAD(Int8, x_bits, x + t + 8 * k);
      GHOSTSHARD_LOAD(Int8, y_bits, y + t + 8 * k);
      GHOSTSHARD_LOAD(Float8, wx, x_weight + t + 8 * k);
      GHOSTSHARD_LOAD(Float8, wy, y_weight + t + 8 * k);
      x_weighted[k] += reinterpret_cast<Float8>(x_bits & magnitude) * wx;
      y_weighted[k] += reinterpret_cast<Float8>(y_bits & magnitude) * wy;
    }
  }
  products[0] += products[2];
  products[1] += products[3];
  double product = 0, x_sum = 0, y_sum = 0;
  for (int lane = 0; lane < 8; ++lane) {
    product += products[lane / 4][lane % 4];
  }
  for (int lane = 0; lane < 16; ++lane) {
    x_sum += x_weighted[lane / 8][lane % 8];
    y_sum += y_weighted[lane / 8][lane % 8];
  }
  for (; t < n; ++t) {
    product += static_cast<double>(x[t]) * y[t];
    x_sum += static_cast<double>(std::fabs(x[t])) * x_weight[t];
    y_sum += static_cast<double>(std::fabs(y[t])) * y_weight[t];
  }
  constexpr double kRoundUp = 1.0001;  // gamma_float32(16384 / 16 + 1) is 6.2e-5.
  sums.product += factor * product;
  sums.x_weighted += factor * kRoundUp * x_sum;
  sums.y_weighted += factor * kRoundUp * y_sum;
}

void add_row_products(const double* x, const double* y, const double* x_weight, const double* y_weight, int64_t n,
                      double factor, RowProductSums& sums) {
  for (int64_t t = 0; t < n; ++t) {
    sums.product += factor * x[t] * y[t];
    sums.x_weighted += factor * std::fabs(x[t]) * x_weight[t];
    sums.y_weighted += factor * std::fabs(y[t]) * y_weight[t];
  }
}

// Magnitudes are compared as integers, which order them alike and which the compiler vectorises.
GHOSTSHARD_VECTORISED float largest_magnitude(const float* x, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float magnitude;
  std::memcpy(&magnitude, &largest, sizeof magnitude);
  return magnitude;
}

#undef GHOSTSHARD_LOAD

}  // namespace ghostshard::kernels
