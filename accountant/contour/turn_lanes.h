// The inner loops of a sweep (contour_sweep.cpp). Processors with wider registers do the same operations in the same
// order, none of them fused: the same bits.
#pragma once

#include <cstddef>

namespace ghostshard::accountant {

inline constexpr size_t kTurnLanes = 4;    // partial sums over the entries; their number is a multiple of this
inline constexpr size_t kTurnsAtOnce = 4;  // nodes of a line

// Entries that turn, each by its factor from one node to the next: the sums at kTurnsAtOnce nodes.
template <class Real>
struct TurnSums {
  Real re[kTurnsAtOnce], im[kTurnsAtOnce];
};

// The sums of z·turn^i, i = 0, …, kTurnsAtOnce - 1. Then each z is multiplied by its leap.
template <class Real>
struct TurnArrays {
  Real *re, *im;
  const Real *turn_re, *turn_im, *leap_re, *leap_im;
  size_t size;
};

// Number: a register of lanes, or one Real.
template <class Number>
[[gnu::always_inline]] inline void times(Number& re, Number& im, const Number& by_re, const Number& by_im) {
  const Number a = re * by_re - im * by_im;
  im = re * by_im + im * by_re;
  re = a;
}

typedef double FourDoubles __attribute__((vector_size(32)));
typedef double FourDoublesAnywhere __attribute__((vector_size(32), aligned(8), may_alias));

[[gnu::always_inline]] inline void turn_each(const TurnArrays<double>& z, TurnSums<double>& sums) {
  static_assert(kTurnLanes == 4 && kTurnsAtOnce == 4);
  const auto load = [](const double* from) __attribute__((always_inline)) {
    return static_cast<FourDoubles>(*reinterpret_cast<const FourDoublesAnywhere*>(from));
  };
  FourDoubles sum_re[kTurnsAtOnce] = {};
  FourDoubles sum_im[kTurnsAtOnce] = {};
  for (size_t j = 0; j < z.size; j += kTurnLanes) {
    FourDoubles re = load(z.re + j);
    FourDoubles im = load(z.im + j);
    FourDoubles next_re = re;
    FourDoubles next_im = im;
    times(next_re, next_im, load(z.leap_re + j), load(z.leap_im + j));
    *reinterpret_cast<FourDoublesAnywhere*>(z.re + j) = next_re;
    *reinterpret_cast<FourDoublesAnywhere*>(z.im + j) = next_im;
    const FourDoubles turn_re = load(z.turn_re + j);
    const FourDoubles turn_im = load(z.turn_im + j);
#pragma GCC unroll 4
    for (size_t i = 0; i < kTurnsAtOnce; ++i) {
      sum_re[i] += re;
      sum_im[i] += im;
      if (i + 1 < kTurnsAtOnce) times(re, im, turn_re, turn_im);
    }
  }
  for (size_t i = 0; i < kTurnsAtOnce; ++i) {
    sums.re[i] = (sum_re[i][0] + sum_re[i][1]) + (sum_re[i][2] + sum_re[i][3]);
    sums.im[i] = (sum_im[i][0] + sum_im[i][1]) + (sum_im[i][2] + sum_im[i][3]);
  }
}

// Σ coefficient_k·x^(k-2), k = last, …, 2, at kTurnsAtOnce places; coefficients: re, im in turn.
[[gnu::always_inline]] inline void horner_each(const double* coefficients, size_t last, const double* x_re,
                                               const double* x_im, double* out_re, double* out_im) {
  const FourDoubles xr = {x_re[0], x_re[1], x_re[2], x_re[3]};
  const FourDoubles xi = {x_im[0], x_im[1], x_im[2], x_im[3]};
  FourDoubles re = {};
  FourDoubles im = {};
  for (size_t k = last; k >= 2; --k) {
    times(re, im, xr, xi);
    re += coefficients[2 * k];
    im += coefficients[2 * k + 1];
  }
  for (size_t i = 0; i < kTurnsAtOnce; ++i) {
    out_re[i] = re[i];
    out_im[i] = im[i];
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline void turn_with_avx2(const TurnArrays<double>& z, TurnSums<double>& sums) {
  turn_each(z, sums);
}
[[gnu::target("avx2")]] inline void horner_with_avx2(const double* coefficients, size_t last, const double* x_re,
                                                     const double* x_im, double* out_re, double* out_im) {
  horner_each(coefficients, last, x_re, x_im, out_re, out_im);
}
inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

inline void turn_lanes(const TurnArrays<double>& z, TurnSums<double>& sums) {
#if defined(__x86_64__)
  if (has_avx2()) return turn_with_avx2(z, sums);
#endif
  turn_each(z, sums);
}

inline void horner_lanes(const double* coefficients, size_t last, const double* x_re, const double* x_im,
                         double* out_re, double* out_im) {
#if defined(__x86_64__)
  if (has_avx2()) return horner_with_avx2(coefficients, last, x_re, x_im, out_re, out_im);
#endif
  horner_each(coefficients, last, x_re, x_im, out_re, out_im);
}

// In long double, without registers of lanes; in as many partial sums.
inline void turn_lanes(const TurnArrays<long double>& z, TurnSums<long double>& sums) {
  long double sum_re[kTurnsAtOnce][kTurnLanes] = {};
  long double sum_im[kTurnsAtOnce][kTurnLanes] = {};
  for (size_t j = 0; j < z.size; ++j) {
    long double re = z.re[j];
    long double im = z.im[j];
    times(z.re[j], z.im[j], z.leap_re[j], z.leap_im[j]);
    for (size_t i = 0; i < kTurnsAtOnce; ++i) {
      sum_re[i][j % kTurnLanes] += re;
      sum_im[i][j % kTurnLanes] += im;
      if (i + 1 < kTurnsAtOnce) times(re, im, z.turn_re[j], z.turn_im[j]);
    }
  }
  for (size_t i = 0; i < kTurnsAtOnce; ++i) {
    sums.re[i] = (sum_re[i][0] + sum_re[i][1]) + (sum_re[i][2] + sum_re[i][3]);
    sums.im[i] = (sum_im[i][0] + sum_im[i][1]) + (sum_im[i][2] + sum_im[i][3]);
  }
}

inline void horner_lanes(const long double* coefficients, size_t last, const long double* x_re, const long double* x_im,
                         long double* out_re, long double* out_im) {
  for (size_t i = 0; i < kTurnsAtOnce; ++i) {
    long double re = 0;
    long double im = 0;
    for (size_t k = last; k >= 2; --k) {
      times(re, im, x_re[i], x_im[i]);
      re += coefficients[2 * k];
      im += coefficients[2 * k + 1];
    }
    out_re[i] = re;
    out_im[i] = im;
  }
}

}  // namespace ghostshard::accountant
