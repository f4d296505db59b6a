// The slow twins: per-unit gradients written out in float64, and the rows that the tests give to both.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels::oracle {

inline Segments segments_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) {
    offsets.push_back(offsets.back() + length);
  }
  return Segments(offsets);
}

// Deterministic normal rows, float32 unless told otherwise.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  at::manual_seed(seed);
  return at::randn(shape, at::kDouble).to(type);
}

enum class Tokens {
  kIndependent,
  kSharedDirection,  // activations with one large common part, as after a normalisation
  kCancel1e4,        // pairs of rows that cancel to 1e-4 of their size
  kCancelExactly,    // pairs of rows that cancel exactly
  kLarge,            // near the square root of the largest float32
  kTiny,             // Gram entries below the smallest normal float32
  kZeroGradient,
};

struct Rows {
  at::Tensor a;
  at::Tensor g;
};

inline Rows rows_like(Tokens tokens, int64_t rows, int64_t inputs, int64_t outputs, at::ScalarType type = at::kFloat) {
  Rows x{.a = normal({rows, inputs}, 1, type), .g = normal({rows, outputs}, 2, type)};
  switch (tokens) {
    case Tokens::kIndependent:
      break;
    case Tokens::kSharedDirection:
      x.a.add_(normal({1, inputs}, 3, type), 3);
      break;
    case Tokens::kCancel1e4:
    case Tokens::kCancelExactly:
      for (int64_t t = 1; t < rows; t += 2) {
        x.a[t].copy_(x.a[t - 1]);
        x.g[t].copy_(x.g[t - 1]).mul_(tokens == Tokens::kCancelExactly ? -1.0 : -1.0 - 1e-4);
      }
      break;
    case Tokens::kLarge:
      x.a.mul_(1e17);
      x.g.mul_(1e17);
      break;
    case Tokens::kTiny:
      x.g.mul_(1e-21);
      break;
    case Tokens::kZeroGradient:
      x.g.zero_();
      break;
  }
  return x;
}

inline at::Tensor unit_rows(const at::Tensor& x, const Segments& segments, int64_t unit) {
  return x.slice(0, segments.begin(unit), segments.end(unit)).to(at::kDouble);
}

// G_u of a linear layer, float64 [p,d].
inline at::Tensor linear_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, int64_t unit) {
  return unit_rows(g, segments, unit).t().mm(unit_rows(a, segments, unit));
}

// The same from absolute values: the rounding errors of a sum are proportional to it.
inline at::Tensor linear_magnitude(const at::Tensor& a, const at::Tensor& g, const Segments& segments, int64_t unit) {
  return linear_gradient(a.abs(), g.abs(), segments, unit);
}

// G_u of a lookup, float64 [V,d].
inline at::Tensor lookup_gradient(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t unit,
                                  int64_t table_rows) {
  at::Tensor gradient = at::zeros({table_rows, e.size(1)}, at::kDouble);
  const at::Tensor rows = unit_rows(e, segments, unit);
  for (int64_t s = 0; s < rows.size(0); ++s) {
    gradient[ids[segments.begin(unit) + s].item<int64_t>()] += rows[s];
  }
  return gradient;
}

inline double squared_norm(const at::Tensor& x) { return x.cpu().to(at::kDouble).pow(2).sum().item<double>(); }

inline double at_unit(const at::Tensor& x, int64_t unit) { return x[unit].item<double>(); }

// Factors that select one unit.
inline at::Tensor only(int64_t unit, int64_t units) {
  at::Tensor factors = at::zeros({units}, at::kFloat);
  factors[unit] = 1.0f;
  return factors;
}

// Compares bits, so −0, NaN and rounding all count.
inline bool same_bits(const at::Tensor& x_there, const at::Tensor& y_there) {
  const at::Tensor x = x_there.cpu(), y = y_there.cpu();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

}  // namespace ghostshard::kernels::oracle
