// The discrete Fourier transform of real numbers, and back, for a length that is a power of two.
//
// Why not Eigen's: the grid spends most of its time here, on up to two million points, and kissfft needs four times as
// long and computes its sines anew each time. The proof of the grid's rounding (grid_side.h) holds for this transform:
// every stage is unitary up to a factor, and a product by a turn (sqrt(5) u for the product, u for the turn) with the
// two sums of radix four has an error of 5.3 u of the 2-norm of its results (Higham 2002, Accuracy and Stability,
// Thm. 24.2).
#pragma once

#include <complex>
#include <cstddef>
#include <vector>

namespace ghostshard::accountant {

// e^(2 pi i k/n), 0 <= k <= n/2, to three roundings.
class RootsOfUnity {
 public:
  explicit RootsOfUnity(size_t n);
  std::complex<double> at(size_t k) const {
    const std::complex<double> a = coarse_[k / kFine];
    const std::complex<double> b = fine_[k % kFine];
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }

 private:
  static constexpr size_t kFine = 1024;
  std::vector<std::complex<double>> fine_, coarse_;
};

class RealTransform {
 public:
  // n: a power of two, 4 or more.
  explicit RealTransform(size_t n);

  // u·(3.8·log2 n + 6): the error of the result is at most this share of its 2-norm, and that of each value at most
  // this share of the sum of the moduli that went into it. It is 2.65 u per level, times sqrt(2) for the values since
  // each comes from two of the half transform, with weights (1 - iw)/2 and (1 + iw)/2, plus the last step's product and
  // sums.
  static double rounding(size_t n);

  // spectrum[k] = Σ_j values[j]·e^(-2 pi i jk/n), k = 0, …, n/2.
  void forward(const std::vector<double>& values, std::vector<std::complex<double>>& spectrum);
  // The values with this spectrum. The imaginary parts of its first and last number are taken as 0.
  void inverse(const std::vector<std::complex<double>>& spectrum, std::vector<double>& values);

 private:
  struct Parts {
    std::vector<double> re, im;
  };
  // The complex transform of half the length, from from_ into from_. swapped: of the conjugates.
  void transform(bool swapped);

  size_t half_;
  RootsOfUnity roots_;  // of n
  Parts turns_;         // e^(-2 pi i k/half), k < 3/4·half
  Parts from_, to_;
};

}  // namespace ghostshard::accountant
