// Stockham's order: each stage reads one array and writes the other, so that nothing is ever permuted.
#include "accountant/grid/real_transform.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;

std::complex<long double> root(size_t k, size_t n) {
  const long double angle =
      2 * std::numbers::pi_v<long double> * static_cast<long double>(k) / static_cast<long double>(n);
  return {std::cos(angle), std::sin(angle)};
}

struct Pair {
  const double *re, *im;
};
struct Target {
  double *re, *im;
};
struct Turn {
  double re, im;
};

// Four numbers a quarter apart become four next to each other, turned.
inline void butterfly(Pair x, size_t at, size_t apart, Target y, size_t to, size_t next, Turn one, Turn two,
                      Turn three) {
  const double a_re = x.re[at];
  const double a_im = x.im[at];
  const double b_re = x.re[at + apart];
  const double b_im = x.im[at + apart];
  const double c_re = x.re[at + 2 * apart];
  const double c_im = x.im[at + 2 * apart];
  const double d_re = x.re[at + 3 * apart];
  const double d_im = x.im[at + 3 * apart];
  const double sum_re = a_re + c_re;
  const double sum_im = a_im + c_im;
  const double less_re = a_re - c_re;
  const double less_im = a_im - c_im;
  const double other_re = b_re + d_re;
  const double other_im = b_im + d_im;
  const double turned_re = b_im - d_im;  // of -i(b - d)
  const double turned_im = d_re - b_re;
  y.re[to] = sum_re + other_re;
  y.im[to] = sum_im + other_im;
  const double first_re = less_re + turned_re;
  const double first_im = less_im + turned_im;
  y.re[to + next] = first_re * one.re - first_im * one.im;
  y.im[to + next] = first_re * one.im + first_im * one.re;
  const double second_re = sum_re - other_re;
  const double second_im = sum_im - other_im;
  y.re[to + 2 * next] = second_re * two.re - second_im * two.im;
  y.im[to + 2 * next] = second_re * two.im + second_im * two.re;
  const double third_re = less_re - turned_re;
  const double third_im = less_im - turned_im;
  y.re[to + 3 * next] = third_re * three.re - third_im * three.im;
  y.im[to + 3 * next] = third_re * three.im + third_im * three.re;
}

}  // namespace

RootsOfUnity::RootsOfUnity(size_t n) {
  const auto rounded = [n](size_t k) {
    const std::complex<long double> exact = root(k, n);
    return Complex(static_cast<double>(exact.real()), static_cast<double>(exact.imag()));
  };
  for (size_t k = 0; k < kFine; ++k) fine_.push_back(rounded(k));
  for (size_t k = 0; k <= n / 2; k += kFine) coarse_.push_back(rounded(k));
}

RealTransform::RealTransform(size_t n) : half_(n / 2), roots_(n) {
  for (Parts* parts : {&from_, &to_}) {
    parts->re.resize(half_);
    parts->im.resize(half_);
  }
  // Products in long double: one rounding each.
  constexpr size_t kFine = 512;
  const size_t count = half_ / 4 * 3;
  turns_.re.resize(count);
  turns_.im.resize(count);
  std::vector<std::complex<long double>> fine;
  for (size_t k = 0; k < kFine && k < count; ++k) fine.push_back(root(k, half_));
  for (size_t first = 0; first < count; first += kFine) {
    const std::complex<long double> coarse = root(first, half_);
    for (size_t k = 0; k < fine.size() && first + k < count; ++k) {
      turns_.re[first + k] = static_cast<double>(coarse.real() * fine[k].real() - coarse.imag() * fine[k].imag());
      turns_.im[first + k] = -static_cast<double>(coarse.real() * fine[k].imag() + coarse.imag() * fine[k].real());
    }
  }
}

double RealTransform::rounding(size_t n) {
  return std::numeric_limits<double>::epsilon() * (1.9 * std::log2(static_cast<double>(n)) + 3);
}

void RealTransform::transform(bool swapped) {
  size_t stride = 1;
  size_t left = half_;
  for (; left >= 4; left /= 4, stride *= 4) {
    const Pair x = swapped ? Pair{from_.im.data(), from_.re.data()} : Pair{from_.re.data(), from_.im.data()};
    const Target y = swapped ? Target{to_.im.data(), to_.re.data()} : Target{to_.re.data(), to_.im.data()};
    const size_t quarter = left / 4;
    const size_t apart = stride * quarter;
    const auto turn = [&](size_t k) { return Turn{turns_.re[k], turns_.im[k]}; };
    if (stride == 1) {
      for (size_t p = 0; p < quarter; ++p) butterfly(x, p, apart, y, 4 * p, 1, turn(p), turn(2 * p), turn(3 * p));
    } else {
      for (size_t p = 0; p < quarter; ++p) {
        const Turn one = turn(p * stride);
        const Turn two = turn(2 * p * stride);
        const Turn three = turn(3 * p * stride);
        const Pair source{x.re + p * stride, x.im + p * stride};
        const Target target{y.re + 4 * p * stride, y.im + 4 * p * stride};
        for (size_t q = 0; q < stride; ++q) butterfly(source, q, apart, target, q, stride, one, two, three);
      }
    }
    std::swap(from_, to_);
  }
  if (left == 2) {
    for (size_t q = 0; q < stride; ++q) {
      to_.re[q] = from_.re[q] + from_.re[q + stride];
      to_.im[q] = from_.im[q] + from_.im[q + stride];
      to_.re[q + stride] = from_.re[q] - from_.re[q + stride];
      to_.im[q + stride] = from_.im[q] - from_.im[q + stride];
    }
    std::swap(from_, to_);
  }
}

// Even and odd places are real and imaginary parts of one transform of half the length.
void RealTransform::forward(const std::vector<double>& values, std::vector<Complex>& spectrum) {
  for (size_t j = 0; j < half_; ++j) {
    from_.re[j] = values[2 * j];
    from_.im[j] = values[2 * j + 1];
  }
  transform(false);
  spectrum.resize(half_ + 1);
  for (size_t k = 0; k <= half_ / 2; ++k) {
    const size_t mirrored = (half_ - k) & (half_ - 1);
    const double even_re = (from_.re[k] + from_.re[mirrored]) / 2;
    const double even_im = (from_.im[k] - from_.im[mirrored]) / 2;
    const double odd_re = (from_.im[k] + from_.im[mirrored]) / 2;
    const double odd_im = (from_.re[mirrored] - from_.re[k]) / 2;
    const Complex turn = std::conj(roots_.at(k));
    const double re = odd_re * turn.real() - odd_im * turn.imag();
    const double im = odd_re * turn.imag() + odd_im * turn.real();
    spectrum[k] = {even_re + re, even_im + im};
    spectrum[half_ - k] = {even_re - re, im - even_im};
  }
}

void RealTransform::inverse(const std::vector<Complex>& spectrum, std::vector<double>& values) {
  for (size_t k = 0; k <= half_ / 2; ++k) {
    Complex low = spectrum[k];
    Complex high = spectrum[half_ - k];
    if (k == 0) {  // of real values these are real
      low.imag(0);
      high.imag(0);
    }
    const double even_re = (low.real() + high.real()) / 2;
    const double even_im = (low.imag() - high.imag()) / 2;
    const double less_re = (low.real() - high.real()) / 2;
    const double less_im = (low.imag() + high.imag()) / 2;
    const Complex turn = roots_.at(k);
    const double odd_re = less_re * turn.real() - less_im * turn.imag();
    const double odd_im = less_re * turn.imag() + less_im * turn.real();
    from_.re[k] = even_re - odd_im;
    from_.im[k] = even_im + odd_re;
    if (k > 0) {
      from_.re[half_ - k] = even_re + odd_im;
      from_.im[half_ - k] = odd_re - even_im;
    }
  }
  transform(true);
  values.resize(2 * half_);
  const double scale = 1 / static_cast<double>(half_);
  for (size_t j = 0; j < half_; ++j) {
    values[2 * j] = from_.re[j] * scale;
    values[2 * j + 1] = from_.im[j] * scale;
  }
}

}  // namespace ghostshard::accountant
