#include "accountant/tradeoff.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ghostshard::accountant {
namespace {

constexpr double kUp = 1 + 1e-14;  // more than the roundings of a handful of products and of exp

// The lesser of both bounds at one epsilon, rounded up.
TestPower bound_at(const Accountant& accountant, double rate, double epsilon, Effort effort) {
  const double delta = accountant.delta(Epsilon(epsilon), effort).upper;
  const double larger = (std::exp(epsilon) * rate + delta) * kUp;
  const double smaller = 1 - std::exp(-epsilon) * (1 - rate - delta) / kUp + 1e-15;
  return {std::min({1.0, larger, smaller}), epsilon, delta};
}

}  // namespace

TestPower most_powerful_test(const Accountant& accountant, double false_positive_rate) {
  const double rate = false_positive_rate;
  if (!(rate > 0 && rate < 1))
    throw std::invalid_argument("a false positive rate or a prior must lie strictly between 0 and 1, got " +
                                std::to_string(rate));
  // Each bound has one minimum: e^eps·rate + delta is convex in e^eps, e^-eps·(1 - rate - delta) concave in e^-eps.
  // Beyond -log(rate) the first exceeds 1; the second is best where e^-eps is about what it leaves.
  constexpr int kCoarse = 60;
  const double most = std::max(-std::log(rate), 40.0);
  double step = most / kCoarse;
  TestPower best{1, 0, 1};
  const auto look_at = [&](double epsilon, Effort effort) {
    if (epsilon < 0) return;
    const TestPower found = bound_at(accountant, rate, epsilon, effort);
    if (found.at_most < best.at_most) best = found;
  };
  for (int i = 0; i <= kCoarse; ++i) look_at(step * i, Effort::kQuick);
  while (step > 1e-5 * (1 + best.epsilon)) {
    step /= 2;
    const double middle = best.epsilon;
    look_at(middle - step, Effort::kQuick);
    look_at(middle + step, Effort::kQuick);
  }
  look_at(best.epsilon, Effort::kTight);
  return best;
}

}  // namespace ghostshard::accountant
