#include "accountant/receipt/phases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

namespace ghostshard::accountant::receipt {
namespace {

using nlohmann::json;

struct Phase {
  double q, sigma;
  int64_t count;
  std::vector<size_t> events;
};

// How much worse two phases become as one, roughly: in logarithms of q and sigma, for each of their releases.
double price(const Phase& a, const Phase& b) {
  return static_cast<double>(a.count + b.count) *
         (std::abs(std::log(a.q / b.q)) + std::abs(std::log(a.sigma / b.sigma)));
}

// Neighbours in order of q and sigma become one, the cheapest pair first.
void merge(std::vector<Phase>& phases, size_t most) {
  while (phases.size() > most) {
    // A tenth of what is left at once: 10,000 phases take some sixty rounds.
    std::vector<std::pair<double, size_t>> pairs;
    for (size_t i = 0; i + 1 < phases.size(); ++i) pairs.emplace_back(price(phases[i], phases[i + 1]), i);
    std::sort(pairs.begin(), pairs.end());
    std::vector<bool> taken(phases.size(), false);
    size_t left = std::min(phases.size() - most, std::max<size_t>(1, phases.size() / 10));
    std::vector<bool> gone(phases.size(), false);
    for (const auto& [cost, i] : pairs) {
      if (left == 0) break;
      if (taken[i] || taken[i + 1]) continue;
      taken[i] = taken[i + 1] = gone[i + 1] = true;
      --left;
      Phase& into = phases[i];
      const Phase& other = phases[i + 1];
      into = {std::max(into.q, other.q), std::min(into.sigma, other.sigma), into.count + other.count,
              std::move(into.events)};
      into.events.insert(into.events.end(), other.events.begin(), other.events.end());
    }
    std::vector<Phase> kept;
    for (size_t i = 0; i < phases.size(); ++i)
      if (!gone[i]) kept.push_back(std::move(phases[i]));
    phases = std::move(kept);
  }
}

}  // namespace

Phases phases_of(const LedgerContents& ledger, size_t most) {
  const Adjacency adjacency = adjacency_from_string(ledger.header.at("adjacency").get<std::string>());
  std::map<EventKey, std::pair<Event, int64_t>> distinct;
  for (const LedgerEntry& entry : ledger.entries)
    ++distinct.try_emplace(key_of(entry.event), entry.event, 0).first->second.second;

  Phases found{json::array(), json::array(), {}, false};
  std::map<std::pair<double, double>, Phase> by_pair;
  for (const auto& [key, charged] : distinct) {
    const auto& [event, count] = charged;
    if (std::holds_alternative<TreeAggregationEvent>(event) || std::holds_alternative<BallsInBinsGaussianEvent>(event))
      throw std::invalid_argument("a receipt covers no " + type_name(event) + " events");
    const SampledGaussian pair = sampled_gaussian(event, adjacency, "of a receipt");
    Phase& phase = by_pair.try_emplace({pair.q, pair.sigma}, Phase{pair.q, pair.sigma, 0, {}}).first->second;
    phase.count += count;
    phase.events.push_back(found.events.size());
    found.events.push_back({{"event", to_json(event)}, {"count", count}});
  }
  std::vector<Phase> phases;
  for (auto& [pair, phase] : by_pair) phases.push_back(std::move(phase));
  found.merged = phases.size() > most;
  merge(phases, most);
  for (const Phase& phase : phases) {
    found.listed.push_back({{"sampling_rate", phase.q},
                            {"noise_multiplier", phase.sigma},
                            {"count", phase.count},
                            {"events", phase.events}});
    found.composed.push_back({{phase.q, phase.sigma}, static_cast<double>(phase.count)});
  }
  return found;
}

}  // namespace ghostshard::accountant::receipt
