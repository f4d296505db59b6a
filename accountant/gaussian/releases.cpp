#include "accountant/gaussian/releases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/event_table.h"
#include "accountant/gaussian/truncated_poisson.h"
#include "accountant/gaussian/truncated_table.h"
#include "accountant/losses/event_pair.h"

namespace ghostshard::accountant {

namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kFinestCells = 1e-6;  // in log q and log sigma

using Counts = std::map<std::pair<double, double>, int64_t>;  // of (q, sigma)

// The count as a double, which may not hold it.
double rounded(int64_t count, bool up) {
  const auto value = static_cast<double>(count);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  return value <= kExact ? value : std::nextafter(value, up ? std::numeric_limits<double>::infinity() : 0.0);
}

// The largest and the least q and sigma of releases that are put together, and how many they are.
struct Cell {
  double least_q = 1, largest_q = 0;
  double least_sigma = std::numeric_limits<double>::infinity(), largest_sigma = 0;
  int64_t count = 0;
};

std::vector<Cell> cells_of(const Counts& counts, double width) {
  std::map<std::pair<double, double>, Cell> cells;
  for (const auto& [release, count] : counts) {
    const auto& [q, sigma] = release;
    Cell& cell =
        width > 0 ? cells[{std::floor(std::log(q) / width), std::floor(std::log(sigma) / width)}] : cells[release];
    cell.least_q = std::min(cell.least_q, q);
    cell.largest_q = std::max(cell.largest_q, q);
    cell.least_sigma = std::min(cell.least_sigma, sigma);
    cell.largest_sigma = std::max(cell.largest_sigma, sigma);
    cell.count += count;
  }
  std::vector<Cell> found;
  found.reserve(cells.size());
  for (const auto& [place, cell] : cells) found.push_back(cell);
  return found;
}

// No more cells than `most`, and not much wider than they must be.
std::vector<Cell> at_most(const Counts& counts, size_t most) {
  double wide = kFinestCells;
  while (cells_of(counts, wide).size() > most) wide *= 2;
  double narrow = wide / 2;
  for (int i = 0; i < 5; ++i) {
    const double middle = std::sqrt(narrow * wide);
    (cells_of(counts, middle).size() > most ? narrow : wide) = middle;
  }
  return cells_of(counts, wide);
}

// All unsampled Gaussians together.
void add_unsampled(const Counts& counts, bool less_private, std::vector<ComposedRelease>& phases) {
  if (counts.empty()) return;
  double sigma = counts.begin()->first.second;
  if (counts.size() > 1 || counts.begin()->second > 1) {
    long double precision = 0;
    for (const auto& [release, count] : counts)
      precision += static_cast<long double>(count) / (static_cast<long double>(release.second) * release.second);
    // Each addition, each product and quotient rounds in long double; then the root, the quotient and its double.
    const double rounding = 4 * kRounding + 4 * kLongRounding * static_cast<double>(counts.size());
    sigma = static_cast<double>(1 / std::sqrt(precision)) * (less_private ? 1 - rounding : 1 + rounding);
  }
  phases.push_back({{1.0, std::max(sigma, std::numeric_limits<double>::min())}, 1});
}

// Each by itself: mixtures are not put together.
void add_truncated(const std::vector<Charge>& charges, Adjacency adjacency, bool larger_neighbour,
                   std::vector<ComposedRelease>& phases) {
  std::map<EventKey, ComposedRelease> truncated;
  for (const Charge& charge : charges)
    if (const auto* event = std::get_if<TruncatedPoissonGaussianEvent>(&charge.event)) {
      const int64_t others = larger_neighbour ? event->units : event->units - 1;
      truncated.insert(
          {key_of(charge.event), truncated_release(*event, adjacency, others, rounded(charge.count, true))});
    }
  for (auto& [key, release] : truncated) phases.push_back(std::move(release));
}

void add_tables(const std::vector<Charge>& charges, Adjacency adjacency, const std::string& engine, bool less_private,
                std::vector<ComposedRelease>& phases) {
  std::map<EventKey, ComposedRelease> tables;
  for (const Charge& charge : charges)
    if (has_loss_table(charge.event, adjacency)) {
      ComposedRelease release{{1.0, 1.0}, rounded(charge.count, less_private)};
      release.table = event_table(charge.event, adjacency, engine);
      tables.insert({key_of(charge.event), std::move(release)});
    }
  for (auto& [key, release] : tables) phases.push_back(std::move(release));
}

}  // namespace

bool has_truncated(const std::vector<Charge>& charges) {
  return std::any_of(charges.begin(), charges.end(), [](const Charge& charge) {
    return std::holds_alternative<TruncatedPoissonGaussianEvent>(charge.event);
  });
}

bool ReleaseBracket::exact() const {
  return std::equal(less_private.begin(), less_private.end(), more_private.begin(), more_private.end(),
                    [](const ComposedRelease& a, const ComposedRelease& b) {
                      return a.release.q == b.release.q && a.release.sigma == b.release.sigma && a.count == b.count &&
                             a.table == b.table;
                    });
}

ReleaseBracket composed_releases(const std::vector<Charge>& charges, Adjacency adjacency, const std::string& engine,
                                 size_t most, size_t together, bool larger_neighbour) {
  ReleaseBracket found;
  for (const bool less_private : {true, false}) {
    Counts sampled;
    Counts unsampled;
    for (const Charge& charge : charges) {
      if (std::holds_alternative<TruncatedPoissonGaussianEvent>(charge.event) ||
          has_loss_table(charge.event, adjacency))
        continue;
      const SampledGaussian release = sampled_gaussian(charge.event, adjacency, engine, less_private);
      require_noise_with_a_square(release);
      (release.q == 1 ? unsampled : sampled)[{release.q, release.sigma}] += charge.count;
    }
    auto& phases = less_private ? found.less_private : found.more_private;
    for (const Cell& cell : sampled.size() <= most ? cells_of(sampled, 0) : at_most(sampled, together)) {
      const SampledGaussian release = less_private ? SampledGaussian{cell.largest_q, cell.least_sigma}
                                                   : SampledGaussian{cell.least_q, cell.largest_sigma};
      phases.push_back({release, rounded(cell.count, less_private)});
    }
    add_unsampled(unsampled, less_private, phases);
    add_tables(charges, adjacency, engine, less_private, phases);
    if (less_private) add_truncated(charges, adjacency, larger_neighbour, phases);
  }
  return found;
}

bool has_table(const std::vector<ComposedRelease>& phases) {
  return std::any_of(phases.begin(), phases.end(), [](const ComposedRelease& phase) { return phase.is_table(); });
}

std::vector<ComposedRelease> with_truncated_tables(const std::vector<Charge>& charges, const std::string& engine,
                                                   size_t most, size_t together) {
  std::vector<Charge> others;
  std::map<EventKey, ComposedRelease> tables;
  for (const Charge& charge : charges) {
    const auto* event = std::get_if<TruncatedPoissonGaussianEvent>(&charge.event);
    if (event == nullptr) {
      others.push_back(charge);
      continue;
    }
    ComposedRelease release{{1.0, 1.0}, rounded(charge.count, true)};
    release.table = truncated_table(*event);
    tables.insert({key_of(charge.event), std::move(release)});
  }
  auto phases = composed_releases(others, Adjacency::kZeroOut, engine, most, together).less_private;
  for (auto& [key, release] : tables) phases.push_back(std::move(release));
  return phases;
}

double infinite_mass(const std::vector<ComposedRelease>& phases) {
  double sum = 0;
  for (const ComposedRelease& phase : phases)
    if (phase.is_table())
      sum += phase.count * std::max(phase.table->remove.less_private.infinite, phase.table->add.less_private.infinite);
  return sum * (1 + 1e-12);
}

bool costs_nothing(const std::vector<ComposedRelease>& phases, Delta delta) {
  double sum = 0;
  for (const ComposedRelease& phase : phases) {
    if (phase.is_table() || phase.is_mixture()) return false;
    sum += phase.count * phase.release.q * std::erf(1 / (2 * std::numbers::sqrt2 * phase.release.sigma));
  }
  return sum * (1 + 1e-9) <= delta.value();
}

bool beyond_resolution(const std::vector<ComposedRelease>& phases) {
  const auto beyond = [](SampledGaussian release) { return release.q < 1 && release.sigma < kLeastResolvedSigma; };
  return std::any_of(phases.begin(), phases.end(), [&](const ComposedRelease& phase) {
    return beyond(phase.release) || std::any_of(phase.alternatives.begin(), phase.alternatives.end(),
                                                [&](const auto& other) { return beyond(other.release); });
  });
}

double largest_loss_of_adding(const std::vector<ComposedRelease>& phases) {
  if (has_table(phases)) return std::numeric_limits<double>::infinity();
  double loss = 0;
  for (const ComposedRelease& phase : phases) {
    double largest_q = phase.release.q;
    for (const auto& [weight, release] : phase.alternatives) largest_q = std::max(largest_q, release.q);
    loss -= phase.count * std::log1p(-largest_q);
  }
  return loss * (1 + 1e-14 + 0x1p-52 * static_cast<double>(phases.size()));
}

bool adding_is_no_worse(const std::vector<ComposedRelease>& phases, double epsilon, double log_delta) {
  if (has_table(phases)) return false;
  if (epsilon >= largest_loss_of_adding(phases)) return true;
  // Any c gives a bound; the best one lies within a ratio of 1.5, or so far out that it would cost more than it saves.
  // A moment of a loss is at least 1, so that no c does whose bound without one is larger than delta.
  double last = 0;
  for (double c = 0.25; c < 1e8; c *= c < 3000 ? 1.5 : 2.5) {
    if (log_chernoff(c, 0, epsilon) > log_delta) continue;
    const double bound = chernoff_log_delta(Direction::kAdd, phases, c, epsilon);
    if (bound <= log_delta) return true;
    if (bound > last) return false;
    last = bound;
  }
  return false;
}

}  // namespace ghostshard::accountant
