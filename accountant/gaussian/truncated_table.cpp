#include "accountant/gaussian/truncated_table.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "accountant/gaussian/truncated_poisson.h"
#include "accountant/losses/laws.h"

namespace ghostshard::accountant {
namespace {

constexpr double kUp = 1 + 8 * 0x1p-52;

// Outcomes of both, as a coin that everybody sees decides. Weights and their products are rounded up by kUp, or down.
LossAtoms mixed(const LossAtoms& a, double weight_a, const LossAtoms& b, double weight_b) {
  std::vector<std::pair<double, double>> all;
  for (const auto& [atoms, weight] : {std::pair{&a, weight_a}, std::pair{&b, weight_b}})
    for (size_t i = 0; i < atoms->loss.size(); ++i) all.emplace_back(atoms->loss[i], atoms->mass[i] * weight);
  std::sort(all.begin(), all.end());
  LossAtoms found;
  for (const auto& [loss, mass] : all) {
    if (!(mass > 0)) continue;
    if (!found.loss.empty() && found.loss.back() == loss) {
      found.mass.back() += mass;
      continue;
    }
    found.loss.push_back(loss);
    found.mass.push_back(mass);
  }
  found.infinite = a.infinite * weight_a + b.infinite * weight_b;
  return found;
}

DominatingPair pair_of(const TruncatedPoissonGaussianEvent& event) {
  // Its weights are those of add-or-remove: P(X < cap), and P(X >= cap) with p.
  const ComposedRelease release = truncated_release(event, Adjacency::kAddOrRemove, event.units - 1, 1);
  const auto [q, sigma] = release.release;
  const DominatingPair below =
      dominating_pair_of(q == 1 ? normal_mixture_losses({{1}, {1}}, {{1}, {0}}, sigma)
                                : normal_mixture_losses({{1 - q, q}, {0, 1}}, {{1}, {0}}, sigma));
  if (!release.is_mixture()) return below;
  const double tau = release.alternatives.front().weight;
  const SampledGaussian truncated = release.alternatives.front().release;
  const DominatingPair above = dominating_pair_of(without_replacement_losses(truncated.q, sigma));
  const auto side = [&](const DominatingPair::Direction& if_below, const DominatingPair::Direction& if_above) {
    return DominatingPair::Direction{
        mixed(if_below.less_private, release.weight * kUp, if_above.less_private, tau * kUp),
        mixed(if_below.more_private, std::max(0.0, 1 - tau) / kUp, {}, 0)};
  };
  return {side(below.remove, above.remove), side(below.add, above.add)};
}

}  // namespace

std::shared_ptr<const DominatingPair> truncated_table(const TruncatedPoissonGaussianEvent& event) {
  static std::mutex mutex;
  static std::map<EventKey, std::shared_ptr<const DominatingPair>> known;
  constexpr size_t kMostKept = 64;
  const EventKey key = key_of(Event(event));
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMostKept) known.clear();
  return known[key] = std::make_shared<const DominatingPair>(pair_of(event));
}

}  // namespace ghostshard::accountant
