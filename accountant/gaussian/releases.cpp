#include "accountant/gaussian/releases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "accountant/gaussian/chernoff.h"

namespace ghostshard::accountant {

std::vector<ComposedRelease> composed_releases(const std::vector<Charge>& charges, Adjacency adjacency,
                                               const std::string& engine) {
  std::map<std::pair<double, double>, double> counts;
  for (const Charge& charge : charges) {
    const SampledGaussian release = sampled_gaussian(charge.event, adjacency, engine);
    counts[{release.q, release.sigma}] += static_cast<double>(charge.count);
  }
  std::vector<ComposedRelease> phases;
  double precision = 0;
  for (const auto& [key, count] : counts) {
    if (key.first == 1)
      precision += count / (key.second * key.second);
    else
      phases.push_back({{key.first, key.second}, count});
  }
  if (precision > 0) {
    // 1e-15 less noise covers the roundings of this sum of squares.
    const double sigma = 1 / std::sqrt(precision) * (1 - 1e-15);
    phases.push_back({{1.0, std::max(sigma, std::numeric_limits<double>::min())}, 1});
  }
  return phases;
}

bool beyond_resolution(const std::vector<ComposedRelease>& phases) {
  return std::any_of(phases.begin(), phases.end(), [](const ComposedRelease& phase) {
    return phase.release.q < 1 && phase.release.sigma < kLeastResolvedSigma;
  });
}

double largest_loss_of_adding(const std::vector<ComposedRelease>& phases) {
  double loss = 0;
  for (const ComposedRelease& phase : phases) loss -= phase.count * std::log1p(-phase.release.q);
  return loss * (1 + 1e-14);
}

bool adding_is_no_worse(const std::vector<ComposedRelease>& phases, double epsilon, double log_delta) {
  if (epsilon >= largest_loss_of_adding(phases)) return true;
  // Any c gives a bound; the best one lies within a ratio of 1.5, or so far out that it would cost more than it saves.
  double last = 0;
  for (double c = 0.25; c < 1e8; c *= c < 3000 ? 1.5 : 2.5) {
    const double bound = chernoff_log_delta(Direction::kAdd, phases, c, epsilon);
    if (bound <= log_delta) return true;
    if (bound > last) return false;
    last = bound;
  }
  return false;
}

}  // namespace ghostshard::accountant
