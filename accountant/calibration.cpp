#include "accountant/calibration.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

constexpr double kLargestSigma = 1e6;
constexpr double kSmallestSigma = 0.01;  // below it every epsilon is astronomical and no noise is worth choosing
constexpr double kSmallestRate = 1e-12;
constexpr int64_t kMostSteps = int64_t{1} << 40;
constexpr double kRelative = 1e-7;

std::unique_ptr<Accountant> charged(const Budget& budget, double q, double sigma, int64_t steps) {
  auto engine = make_accountant(budget.accountant, budget.adjacency);
  engine->compose(PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, steps);
  return engine;
}

double upper(const Budget& budget, double q, double sigma, int64_t steps) {
  return charged(budget, q, sigma, steps)->epsilon(budget.delta).upper;
}

// Whether the budget is kept. A quick bracket that lies above the target decides; below it, only the number that will
// be reported does.
bool keeps(const Budget& budget, double q, double sigma, int64_t steps) {
  const auto engine = charged(budget, q, sigma, steps);
  if (engine->epsilon(budget.delta, Effort::kQuick).lower > budget.epsilon.value()) return false;
  return engine->epsilon(budget.delta).upper <= budget.epsilon.value();
}

void require_steps(int64_t steps) {
  if (!(steps > 0)) throw std::invalid_argument("steps must be > 0, got " + std::to_string(steps));
}

[[noreturn]] void unreachable(const Budget& budget, const std::string& with, double reached) {
  std::ostringstream message;
  message << "target epsilon must be reachable with " << with << ": at this one epsilon is still " << reached
          << ", the target is " << budget.epsilon.value();
  throw std::invalid_argument(message.str());
}

}  // namespace

NoiseMultiplier calibrate_noise(const Budget& budget, SamplingRate q, int64_t steps) {
  require_steps(steps);
  const auto meets = [&](double sigma) { return keeps(budget, q.value(), sigma, steps); };
  // enough always meets the target; too_little does not, or lies below the smallest sigma offered.
  double enough = 1;
  while (!meets(enough)) {
    if (enough >= kLargestSigma)
      unreachable(budget, "a noise multiplier <= 1e+06", upper(budget, q.value(), kLargestSigma, steps));
    enough = std::min(enough * 2, kLargestSigma);
  }
  double too_little = enough / 2;
  while (meets(too_little)) {
    enough = too_little;
    if (enough <= kSmallestSigma) return NoiseMultiplier(enough);
    too_little = std::max(enough / 2, kSmallestSigma);
  }
  while (enough - too_little > kRelative / 2 * enough) {
    const double middle = too_little + (enough - too_little) / 2;
    (meets(middle) ? enough : too_little) = middle;
  }
  return NoiseMultiplier(enough);
}

NoiseMultiplier calibrate_noise(const std::string& accountant, Adjacency adjacency, Epsilon target, Delta delta,
                                SamplingRate q, int64_t steps) {
  return calibrate_noise(Budget{accountant, adjacency, target, delta}, q, steps);
}

SamplingRate calibrate_sampling_rate(const Budget& budget, NoiseMultiplier sigma, int64_t steps) {
  require_steps(steps);
  const auto meets = [&](double q) { return keeps(budget, q, sigma.value(), steps); };
  if (meets(1)) return SamplingRate(1);
  double too_much = 1;
  double allowed = 0.5;
  while (!meets(allowed)) {
    if (allowed <= kSmallestRate)
      unreachable(budget, "a sampling rate >= 1e-12", upper(budget, kSmallestRate, sigma.value(), steps));
    too_much = allowed;
    allowed = std::max(allowed / 8, kSmallestRate);
  }
  while (too_much - allowed > kRelative / 2 * allowed) {
    const double middle = too_much > 4 * allowed ? std::sqrt(too_much * allowed) : (too_much + allowed) / 2;
    (meets(middle) ? allowed : too_much) = middle;
  }
  return SamplingRate(allowed);
}

int64_t calibrate_steps(const Budget& budget, SamplingRate q, NoiseMultiplier sigma) {
  const auto meets = [&](int64_t steps) { return keeps(budget, q.value(), sigma.value(), steps); };
  if (!meets(1)) return 0;
  int64_t allowed = 1;
  int64_t too_many = 2;
  while (too_many <= kMostSteps && meets(too_many)) {
    allowed = too_many;
    too_many *= 2;
  }
  if (too_many > kMostSteps) return kMostSteps;
  while (too_many - allowed > 1) {
    const int64_t middle = allowed + (too_many - allowed) / 2;
    (meets(middle) ? allowed : too_many) = middle;
  }
  return allowed;
}

}  // namespace ghostshard::accountant
