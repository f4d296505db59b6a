#include "dp/mechanism/noise_chain.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace ghostshard::dp {
namespace {

constexpr int64_t kMostChainSteps = 1'000'000;  // as many groups as accountant/rounds.h counts

}  // namespace

float NoiseChain::taken_back(float scale) const {
  const double exact = static_cast<double>(decay) * static_cast<double>(scale);  // of floats: exact in double
  const auto nearest = static_cast<float>(exact);
  return static_cast<double>(nearest) > exact ? std::nextafter(nearest, 0.0F) : nearest;
}

double NoiseChain::norm(int64_t step) const {
  if (steps == 1) return 1;
  // The square of a float is exact in double. Power i errs by at most i roundings, the sum and its root by as many as
  // there are terms.
  const double square = static_cast<double>(decay) * static_cast<double>(decay);
  const int64_t rows = steps - step % steps;
  double sum = 0, power = 1;
  for (int64_t i = 0; i < rows; ++i) {
    sum += power;
    power *= square;
  }
  const double slack = (2 * static_cast<double>(rows) + 4) * std::numeric_limits<double>::epsilon();
  return std::sqrt(sum) * (1 + slack);
}

double NoiseChain::variance() const {
  const double square = static_cast<double>(decay) * static_cast<double>(decay);
  double sum = 0, column = 0;  // from the chain's last step to its first
  for (int64_t p = steps - 1; p >= 0; --p) {
    column = 1 + square * column;
    sum += column * (p == 0 ? 1 : 1 + square);
  }
  return sum / static_cast<double>(steps);
}

void NoiseChain::check() const {
  if (!(steps >= 1 && steps <= kMostChainSteps)) {
    throw std::invalid_argument("a noise chain must have from 1 to " + std::to_string(kMostChainSteps) +
                                " steps, got " + std::to_string(steps));
  }
  const bool fits = steps == 1 ? decay == 0 : decay > 0 && decay <= 1;
  if (!fits) {
    throw std::invalid_argument("a noise chain's decay must be > 0 and at most 1, and 0 if it has one step, got " +
                                std::to_string(decay) + " for " + std::to_string(steps) + " steps");
  }
}

void NoiseCorrelation::check() const {
  bands.check();
  chain.check();
  blt.check();
  if (bands.count() > 1 && chain.steps > 1) {
    throw std::invalid_argument("noise bands and noise chains cannot be combined: one of them correlates the noise");
  }
  if (blt.is_on() && groups() > 1) {
    throw std::invalid_argument(
        "noise buffers cannot be combined with noise bands or noise chains: one of them correlates the noise");
  }
}

}  // namespace ghostshard::dp
