// The inner loop of a sweep (contour_sweep.cpp).
#pragma once

#include <algorithm>
#include <cstddef>

#include "accountant/contour/contour_moments.h"

namespace ghostshard::accountant {

// Adds numbers to the lanes, then turns each by its factor; `size` is a multiple of the lanes. Processors with wider
// registers do the same operations in the same order, none of them fused: the same bits.
template <class Real>
[[gnu::always_inline]] inline void turn_each(Real* __restrict re, Real* __restrict im, const Real* __restrict turn_re,
                                             const Real* __restrict turn_im, size_t size, Real* __restrict lanes_re,
                                             Real* __restrict lanes_im) {
  Real sum_re[kLanes] = {};
  Real sum_im[kLanes] = {};
  for (size_t j = 0; j < size; j += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const Real a = re[j + lane];
      const Real b = im[j + lane];
      sum_re[lane] += a;
      sum_im[lane] += b;
      re[j + lane] = a * turn_re[j + lane] - b * turn_im[j + lane];
      im[j + lane] = a * turn_im[j + lane] + b * turn_re[j + lane];
    }
  std::copy_n(sum_re, kLanes, lanes_re);
  std::copy_n(sum_im, kLanes, lanes_im);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline void turn_with_avx2(double* re, double* im, const double* turn_re, const double* turn_im,
                                                   size_t size, double* lanes_re, double* lanes_im) {
  turn_each(re, im, turn_re, turn_im, size, lanes_re, lanes_im);
}
#endif

template <class Real>
void turn_lanes(Real* re, Real* im, const Real* turn_re, const Real* turn_im, size_t size, Real* lanes_re,
                Real* lanes_im) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if constexpr (sizeof(Real) == sizeof(double))
    if (has_avx2) return turn_with_avx2(re, im, turn_re, turn_im, size, lanes_re, lanes_im);
#endif
  turn_each(re, im, turn_re, turn_im, size, lanes_re, lanes_im);
}

}  // namespace ghostshard::accountant
