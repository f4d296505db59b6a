// log(1 + z) and e^z - 1 of complex numbers, to some roundings of |z| near 0.
#pragma once

#include <cmath>
#include <complex>

namespace ghostshard::accountant {

// To 4 roundings of |z| where that is at most 1/2, of |z| and of the result elsewhere.
inline std::complex<double> log_of_one_and(std::complex<double> z) {
  const double x = z.real();
  const double y = z.imag();
  if (std::abs(x) + std::abs(y) > 0.5) return std::log(1.0 + z);
  return {0.5 * std::log1p(2 * x + x * x + y * y), std::atan2(y, 1 + x)};
}

// To 8 roundings of |z|·e^max(0, Re z).
inline std::complex<double> exp_less_one(std::complex<double> z) {
  const double half = std::sin(z.imag() / 2);
  return {std::expm1(z.real()) * std::cos(z.imag()) - 2 * half * half, std::exp(z.real()) * std::sin(z.imag())};
}

}  // namespace ghostshard::accountant
