#include "accountant/calibration.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

constexpr double kLargestSigma = 1e6;
constexpr double kSmallestSigma = 0.01;  // below it every epsilon is astronomical and no noise is worth choosing
constexpr double kRelative = 1e-6;

}  // namespace

NoiseMultiplier calibrate_noise(const std::string& accountant, Adjacency adjacency, Epsilon target, Delta delta,
                                SamplingRate q, int64_t steps) {
  if (!(steps > 0)) throw std::invalid_argument("steps must be > 0, got " + std::to_string(steps));
  const auto upper = [&](double sigma) {
    const auto engine = make_accountant(accountant, adjacency);
    engine->compose(PoissonGaussianEvent{q, NoiseMultiplier(sigma)}, steps);
    return engine->epsilon(delta).upper;
  };
  // enough always meets the target; too_little does not, or lies below the smallest sigma offered.
  double enough = 1;
  while (!(upper(enough) <= target.value())) {
    if (enough >= kLargestSigma) {
      std::ostringstream message;
      message << "target epsilon must be reachable with a noise multiplier <= " << kLargestSigma
              << ": at this one epsilon is still " << upper(kLargestSigma) << ", the target is " << target.value();
      throw std::invalid_argument(message.str());
    }
    enough = std::min(enough * 2, kLargestSigma);
  }
  double too_little = enough / 2;
  while (upper(too_little) <= target.value()) {
    enough = too_little;
    if (enough <= kSmallestSigma) return NoiseMultiplier(enough);
    too_little = std::max(enough / 2, kSmallestSigma);
  }
  while (enough - too_little > kRelative / 2 * enough) {
    const double middle = too_little + (enough - too_little) / 2;
    (upper(middle) <= target.value() ? enough : too_little) = middle;
  }
  return NoiseMultiplier(enough);
}

}  // namespace ghostshard::accountant
