#include "dp/planning/bfgs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace ghostshard::dp {
namespace {

using Numbers = std::vector<double>;

double dot(const Numbers& a, const Numbers& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }
double norm(const Numbers& a) { return std::sqrt(dot(a, a)); }

Numbers sum_of(const Numbers& a, double factor, const Numbers& b) {
  Numbers sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * b[i];
  return sum;
}

// The inverse Hessian of BFGS (Nocedal & Wright, Numerical Optimization, 2nd ed., eq. 6.17), by rows.
class InverseHessian {
 public:
  explicit InverseHessian(size_t size) : size_(size) { reset(); }
  void reset() {
    rows_.assign(size_ * size_, 0);
    for (size_t i = 0; i < size_; ++i) rows_[i * size_ + i] = 1;
  }
  Numbers times(const Numbers& v) const {
    Numbers product(size_, 0);
    for (size_t i = 0; i < size_; ++i) {
      for (size_t j = 0; j < size_; ++j) product[i] += rows_[i * size_ + j] * v[j];
    }
    return product;
  }
  void update(const Numbers& moved, const Numbers& turned) {
    const double curvature = dot(moved, turned);
    if (!(curvature > 1e-14 * norm(moved) * norm(turned))) return;
    const Numbers product = times(turned);
    const double scale = (1 + dot(turned, product) / curvature) / curvature;
    for (size_t i = 0; i < size_; ++i) {
      for (size_t j = 0; j < size_; ++j) {
        rows_[i * size_ + j] +=
            scale * moved[i] * moved[j] - (product[i] * moved[j] + moved[i] * product[j]) / curvature;
      }
    }
  }

 private:
  size_t size_;
  Numbers rows_;
};

}  // namespace

std::vector<double> by_bfgs(std::vector<double> a, const std::function<Sloped(const std::vector<double>&)>& function) {
  constexpr int kMostIterations = 300;
  constexpr double kFlat = 1e-8, kEnough = 1e-4, kShortest = 1e-12;
  InverseHessian inverse(a.size());
  Sloped here = function(a);
  for (int i = 0; i < kMostIterations && norm(here.slopes) > kFlat; ++i) {
    Numbers direction = inverse.times(here.slopes);
    if (!(dot(direction, here.slopes) > 0)) {
      inverse.reset();
      direction = here.slopes;
    }
    const double fall = -dot(direction, here.slopes);
    double length = std::min(1.0, 0.5 / norm(direction));
    Numbers next = sum_of(a, -length, direction);
    Sloped there = function(next);
    while (!(there.value <= here.value + kEnough * length * fall) && length > kShortest) {
      length /= 2;
      next = sum_of(a, -length, direction);
      there = function(next);
    }
    if (!(there.value <= here.value)) break;  // from here on rounding decides
    inverse.update(sum_of(next, -1, a), sum_of(there.slopes, -1, here.slopes));
    a = std::move(next);
    here = std::move(there);
  }
  return a;
}

}  // namespace ghostshard::dp
