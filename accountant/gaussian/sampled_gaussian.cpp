#include "accountant/gaussian/sampled_gaussian.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();

// The rule's error is e^-kPrecision of M - 1 (see precision_for).
constexpr double kPrecision = 45;
constexpr double kMostNodes = 1 << 16;  // limits time (about 4 ms) at orders that no run would choose

// Enough for the rule's error to be small beside M - 1 >= c·min(c, 1)/2·q²·(e^(1/sigma²) - 1)/4 or so; it is measured
// whatever this guess is worth.
double precision_for(SampledGaussian release, double c) {
  const double smallest =
      2 * std::log(release.q) - 2 * std::log(std::max(release.sigma, 1.0)) + 2 * std::log(std::min(c, 1.0));
  return kPrecision - smallest;
}

double log1p_exp(double x) { return x > 40 ? x + std::exp(-x) : std::log1p(std::exp(x)); }

}  // namespace

SampledGaussian sampled_gaussian(const Event& event, Adjacency adjacency, const std::string& engine,
                                 bool less_private) {
  const bool replace = adjacency == Adjacency::kReplaceOne;
  if (const auto* gaussian = std::get_if<GaussianEvent>(&event))
    return {1.0, gaussian->sigma.value() / (replace ? 2 : 1)};
  if (const auto* tree = std::get_if<TreeAggregationEvent>(&event)) {
    const auto levels = static_cast<double>(std::bit_width(static_cast<uint64_t>(tree->steps)));
    const double rounding = less_private ? -4 * kRounding : 4 * kRounding;
    return {1.0, tree->sigma.value() / std::sqrt(levels) / (replace ? 2 : 1) * (1 + rounding)};
  }
  if (const auto* bins = std::get_if<BallsInBinsGaussianEvent>(&event); bins && bins->steps == 1)
    return {1.0, bins->sigma.value() / (replace ? 2 : 1)};
  if (!replace) {
    if (const auto* sampled = std::get_if<PoissonGaussianEvent>(&event))
      return {sampled->q.value(), sampled->sigma.value()};
    if (const auto* adaptive = std::get_if<AdaptiveClippingEvent>(&event)) {
      const double gradient = 1 / adaptive->sigma.value();
      const double centred_count = 1 / (2 * adaptive->count_sigma.value());
      const double rounding = less_private ? -4 * kRounding : 4 * kRounding;
      return {adaptive->q.value(), 1 / std::hypot(gradient, centred_count) * (1 + rounding)};
    }
  }
  refuse_event(engine, event, adjacency);
}

void require_noise_with_a_square(SampledGaussian release) {
  if (release.q < 1 && release.sigma > 1e100)
    throw std::invalid_argument("the noise multiplier of a sampled release must be at most 1e100, got " +
                                nlohmann::json(release.sigma).dump());
}

double log_moment_upper(Direction direction, SampledGaussian release, double c) {
  const double gaussian = c * (1 + c) / (2 * release.sigma * release.sigma) * (1 + 4 * kRounding);
  if (release.q == 1) return gaussian;
  const double convexity =
      gaussian > 40 ? log1p_exp(gaussian + std::log(release.q)) : std::log1p(release.q * std::expm1(gaussian));
  if (release.sigma < kLeastResolvedSigma) return convexity * (1 + 8 * kRounding);
  const auto moment = real_moment_to(direction, release, c, precision_for(release, c), kMostNodes);
  const double bound = moment ? std::min(moment->log_m + moment->error, convexity) : convexity;
  return bound >= 0 ? bound * (1 + 8 * kRounding) : kInfinity;  // NaN becomes infinity
}

}  // namespace ghostshard::accountant
