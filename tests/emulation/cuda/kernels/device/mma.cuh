// Replaces kernels/device/mma.cuh: the instruction on the CPU, with the same fragment layouts, by the whole warp. It is
// slightly less exact than tensor cores have been observed to be: the accumulator and the 16 products are aligned to
// the largest of them and truncated to 24 bits there, and so is their sum (kernels/device/rounding.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/elements.cuh"
#include "tests/emulation/cuda/executor.h"

namespace ghostshard::kernels::device {

inline float cut_sum(const double (&terms)[17]) {
  double largest = 0;
  for (const double term : terms) {
    if (!std::isfinite(term)) {
      double sum = 0;
      for (const double t : terms) sum += t;
      return static_cast<float>(sum);
    }
    largest = std::fmax(largest, std::fabs(term));
  }
  if (largest == 0) return 0;
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  const auto cut = [](double x, int bits) { return std::ldexp(std::trunc(std::ldexp(x, -bits)), bits); };
  double sum = 0;
  for (const double term : terms) sum += cut(term, exponent - 24);  // exact: 29 bits
  if (sum == 0) return 0;
  std::frexp(sum, &exponent);
  return static_cast<float>(cut(sum, exponent - 24));
}

struct MmaLane {
  float* c;
  const uint32_t* x;
  const uint32_t* y;
};

template <typename Format>
void multiply_add_16x8x16(Format /*format*/, float (&c)[4], const uint32_t (&x)[4], const uint32_t (&y)[2]) {
  MmaLane mine{c, x, y};
  emulation::warp_collective("mma.m16n8k16", &mine, [](void* const(&all)[emulation::kLanes]) {
    const auto element = [](uint32_t word, int half) {
      return static_cast<double>(to_float(Format{static_cast<uint16_t>(word >> (16 * half))}));
    };
    double left[16][16], right[16][8];
    for (int lane = 0; lane < emulation::kLanes; ++lane) {
      const MmaLane& from = *static_cast<const MmaLane*>(all[lane]);
      const int group = lane / 4, pair = lane % 4;
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i) left[group + 8 * (i % 2)][2 * pair + half + 8 * (i / 2)] = element(from.x[i], half);
        for (int i = 0; i < 2; ++i) right[2 * pair + half + 8 * i][group] = element(from.y[i], half);
      }
    }
    for (int lane = 0; lane < emulation::kLanes; ++lane) {
      const MmaLane& to = *static_cast<const MmaLane*>(all[lane]);
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double terms[17] = {};
        for (int k = 0; k < 16; ++k) terms[k] = left[row][k] * right[k][column];
        terms[16] = to.c[i];
        to.c[i] = cut_sum(terms);
      }
    }
  });
}

}  // namespace ghostshard::kernels::device
