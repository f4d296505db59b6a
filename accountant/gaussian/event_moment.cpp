#include "accountant/gaussian/event_moment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/fixed_size.h"
#include "accountant/gaussian/sampled_gaussian.h"
#include "accountant/gaussian/truncated_poisson.h"
#include "accountant/gaussian/tuning.h"
#include "accountant/losses/event_pair.h"

namespace ghostshard::accountant {
namespace {

// Upper bound of log M(c) of one mixture: M is the mean of its pairs' moments, and M - 1 that of theirs less 1.
double mixture_log_moment(Direction direction, const ComposedRelease& mixture, double c) {
  std::vector<std::pair<double, double>> parts = {{mixture.nothing, 0.0},
                                                  {mixture.weight, log_moment_upper(direction, mixture.release, c)}};
  for (const auto& [weight, release] : mixture.alternatives)
    parts.emplace_back(weight, log_moment_upper(direction, release, c));
  double top = 0;
  double weights = 0;
  for (const auto& [weight, log_m] : parts) {
    if (weight > 0) top = std::max(top, log_m);
    weights += weight;
  }
  const double rounding = 16 * std::numeric_limits<double>::epsilon();
  double sum = top > 1 ? 0 : weights - 1;
  for (const auto& [weight, log_m] : parts)
    if (weight > 0) sum += top > 1 ? weight * std::exp(log_m - top) : weight * std::expm1(log_m);
  const double log_m = top > 1 ? top + std::log(sum) : std::log1p(sum);
  return log_m + rounding * (1 + std::abs(log_m));
}

// The larger of both directions, and of both neighbours if one has a unit more.
double truncated_log_moment(const TruncatedPoissonGaussianEvent& event, double c, Adjacency adjacency) {
  double largest = 0;
  for (const int64_t others : {event.units - 1, adjacency == Adjacency::kAddOrRemove ? event.units : event.units - 1})
    for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
      const ComposedRelease mixture = truncated_release(event, adjacency, others, 1);
      largest = std::max(largest, mixture.is_mixture() ? mixture_log_moment(direction, mixture, c)
                                                       : log_moment_upper(direction, mixture.release, c));
    }
  return largest;
}

// log Σ mass·e^(c·loss) of the finite losses, rounded up: a rounding or two of each term and of its exponent, and one
// of their sum for each.
double log_moment_of(const LossAtoms& atoms, double c) {
  constexpr double kRounding = std::numeric_limits<double>::epsilon();
  double top = 0;
  for (size_t i = 0; i < atoms.loss.size(); ++i) top = std::max(top, c * atoms.loss[i] + std::log(atoms.mass[i]));
  double sum = 0;
  double total = 0;
  double error = 0;
  const bool far = top > 1;
  for (size_t i = 0; i < atoms.loss.size(); ++i) {
    const double exponent = c * atoms.loss[i];
    const double term = atoms.mass[i] * (far ? std::exp(exponent - top) : std::expm1(exponent));
    total += atoms.mass[i];
    sum += term;
    error += kRounding * ((std::abs(term) + atoms.mass[i]) * (4 + std::abs(exponent)) + std::abs(term) * top);
  }
  const double adding = kRounding * (16 + static_cast<double>(atoms.loss.size()));
  if (!far) sum += total - 1;
  const double raised = sum + error * (1 + adding);
  const double log_m = far ? top + std::log(raised) : std::log1p(raised);
  const double bound = log_m + adding * (1 + std::abs(log_m));
  return std::isnan(bound) ? std::numeric_limits<double>::infinity() : std::max(0.0, bound);
}

double table_log_moment(const Event& event, double c, Adjacency adjacency) {
  if (const auto* tuning = std::get_if<TuningNegativeBinomialEvent>(&event))
    return tuning_log_moment(*tuning, c, adjacency);
  if (const auto* tuning = std::get_if<TuningPoissonEvent>(&event)) return tuning_log_moment(*tuning, c, adjacency);
  if (const auto* zcdp = std::get_if<ZcdpEvent>(&event))
    return c * (zcdp->xi.value() + zcdp->rho.value() * (1 + c)) * (1 + 8 * std::numeric_limits<double>::epsilon());
  const auto table = loss_table(event, adjacency, "rdp");
  return std::max(log_moment_of(table->remove.less_private, c), log_moment_of(table->add.less_private, c));
}

}  // namespace

double event_log_moment(const Event& event, double c, Adjacency adjacency) {
  if (const auto* fixed = std::get_if<FixedSizeGaussianEvent>(&event); fixed && adjacency == Adjacency::kReplaceOne)
    return fixed_size_log_moment(*fixed, c);
  if (const auto* truncated = std::get_if<TruncatedPoissonGaussianEvent>(&event);
      truncated && adjacency != Adjacency::kReplaceOne)
    return truncated_log_moment(*truncated, c, adjacency);
  if (has_loss_table(event, adjacency)) return table_log_moment(event, c, adjacency);
  // For this mechanism removing is never the better direction (Mironov et al. 2019, Thm. 5); the maximum is
  // taken anyway, so that nothing rests on a theorem about another mechanism when one is added.
  const SampledGaussian release = sampled_gaussian(event, adjacency, "rdp");
  return std::max(log_moment_upper(Direction::kRemove, release, c), log_moment_upper(Direction::kAdd, release, c));
}

// Those that are bounded by their moments directly have none.
double infinite_loss(const Event& event, Adjacency adjacency) {
  if (!has_loss_table(event, adjacency) || is_bounded_by_moments(event) ||
      std::holds_alternative<FixedSizeGaussianEvent>(event))
    return 0;
  const auto table = loss_table(event, adjacency, "rdp");
  return std::max(table->remove.less_private.infinite, table->add.less_private.infinite);
}

double epsilon_of_moment(double c, double k, double log_delta) {
  const double rdp = k / c;
  const double shift = -std::log1p(1 / c);  // log(1 - 1/alpha): as c goes to 0 1/(1 + c) loses its digits
  const double tail = log_delta / c;
  const double order = std::log1p(c) / c;
  const double rounding = 4 * std::numeric_limits<double>::epsilon() * (rdp + std::abs(shift) + std::abs(tail) + order);
  return rdp + shift - tail - order + rounding;
}

double log_delta_of_moment(double c, double k, double epsilon) {
  const double order = std::log1p(c);
  const double shift = -c * std::log1p(1 / c);
  const double gain = c * epsilon;
  return k + shift - order - gain + 4 * std::numeric_limits<double>::epsilon() * (k + std::abs(shift) + order + gain);
}

}  // namespace ghostshard::accountant
