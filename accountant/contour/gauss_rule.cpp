#include "accountant/contour/gauss_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr long double kNoMore = 1e-33L;  // of a squared norm beside the one before: there are no more masses

// The three-term recurrence of the monic orthogonal polynomials: p_{k+1} = (x - alpha_k)·p_k - beta_k·p_{k-1}.
struct Recurrence {
  std::vector<long double> alpha, beta;  // beta_0: all mass
};

// Stieltjes' procedure (Gautschi 2004, Orthogonal Polynomials, §2.2.3).
Recurrence recurrence_of(std::span<const Mass> measure, size_t size) {
  Recurrence found;
  std::vector<long double> before(measure.size(), 0);
  std::vector<long double> now(measure.size(), 1);
  long double norm_before = 1;
  for (size_t k = 0; k < size; ++k) {
    long double norm = 0;
    long double first = 0;
    for (size_t i = 0; i < measure.size(); ++i) {
      const long double square = measure[i].weight * now[i] * now[i];
      norm += square;
      first += square * measure[i].x;
    }
    if (!(norm > kNoMore * norm_before)) break;
    found.alpha.push_back(first / norm);
    found.beta.push_back(k == 0 ? norm : norm / norm_before);
    const long double beta = k == 0 ? 0 : found.beta.back();
    for (size_t i = 0; i < measure.size(); ++i) {
      const long double next = (measure[i].x - found.alpha.back()) * now[i] - beta * before[i];
      before[i] = now[i];
      now[i] = next;
    }
    norm_before = norm;
  }
  return found;
}

// How many zeros of the last polynomial lie below x (Sturm).
size_t zeros_below(const Recurrence& recurrence, long double x) {
  size_t below = 0;
  long double ratio = 1;
  for (size_t k = 0; k < recurrence.alpha.size(); ++k) {
    ratio = recurrence.alpha[k] - x - (k == 0 ? 0 : recurrence.beta[k] / ratio);
    if (ratio == 0) ratio = 1e-30L;
    if (ratio < 0) ++below;
  }
  return below;
}

// The rule's weight at a zero: 1/Σ of the squared orthonormal polynomials there.
long double weight_at(const Recurrence& recurrence, long double x) {
  long double before = 0;
  long double now = 1 / std::sqrt(recurrence.beta[0]);
  long double sum = 0;
  for (size_t k = 0; k < recurrence.alpha.size(); ++k) {
    sum += now * now;
    if (k + 1 == recurrence.alpha.size()) break;
    const long double last = k == 0 ? 0 : std::sqrt(recurrence.beta[k]) * before;
    const long double next = ((x - recurrence.alpha[k]) * now - last) / std::sqrt(recurrence.beta[k + 1]);
    before = now;
    now = next;
  }
  return 1 / sum;
}

}  // namespace

std::vector<Mass> gauss_rule(std::span<const Mass> measure, size_t size) {
  const Recurrence recurrence = recurrence_of(measure, size);
  std::vector<Mass> rule;
  for (size_t j = 0; j < recurrence.alpha.size(); ++j) {
    long double low = -1;
    long double high = 1;
    for (int i = 0; i < 66; ++i) {
      const long double middle = (low + high) / 2;
      (zeros_below(recurrence, middle) > j ? high : low) = middle;
    }
    const long double x = (low + high) / 2;
    rule.push_back({x, static_cast<double>(weight_at(recurrence, x))});
  }
  return rule;
}

std::vector<double> misses(std::span<const Mass> measure, std::span<const Mass> rule, size_t degree, double of_place) {
  std::vector<long double> sums(degree + 1, 0);
  double weights = 0;
  const auto add = [&](std::span<const Mass> masses, int sign) {
    for (const auto& [x, weight] : masses) {
      long double before = 1;
      long double now = x;
      sums[0] += sign * weight;
      weights += weight;
      for (size_t m = 1; m <= degree; ++m) {
        sums[m] += sign * weight * now;
        const long double next = 2 * x * now - before;
        before = now;
        now = next;
      }
    }
  };
  add(measure, 1);
  add(rule, -1);
  std::vector<double> found;
  const auto terms = static_cast<double>(measure.size() + rule.size());
  for (size_t m = 0; m <= degree; ++m) {
    // |T_m'| <= m² inside. The recurrence adds two roundings a turn, each of which grows by U_j <= m at most; adding
    // up costs one rounding of the sum of moduli for each term.
    const auto order = static_cast<double>(m);
    const double of_term = order * order * (of_place + 4) + 4;
    found.push_back((std::abs(static_cast<double>(sums[m])) + weights * kLongRounding * (of_term + terms)) *
                    (1 + 1e-14));
  }
  return found;
}

}  // namespace ghostshard::accountant
