#include "accountant/releases.h"

#include <cmath>
#include <limits>
#include <map>

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

double largest_loss_of_adding(const std::vector<ComposedRelease>& phases) {
  double loss = 0;
  for (const ComposedRelease& phase : phases) loss -= phase.count * std::log1p(-phase.release.q);
  return loss * (1 + 1e-14);
}

}  // namespace ghostshard::accountant
