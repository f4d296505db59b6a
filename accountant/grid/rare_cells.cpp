#include "accountant/grid/rare_cells.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/grid/misplaced.h"
#include "accountant/grid/outcomes.h"
#include "accountant/grid/regrid.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Rounds of evening out: for all cells, and for those next to the split, where the density is the least smooth.
constexpr int kRounds = 3;
constexpr int kRoundsNear = 60;
constexpr size_t kNear = 64;
constexpr double kLargestExponent = 700;

GridShape rare_part(Direction direction, const Split& split, GridShape grid) {
  (direction == Direction::kRemove ? grid.from : grid.to) = direction == Direction::kRemove ? split.loss : -split.loss;
  return grid;
}

// log |B_P| and log(|B_P|/|B_Q|), rounded down and up.
struct Common {
  double least_log_p, most_log_p, least_loss, most_loss;
  double rare;  // R_P, rounded up
};
Common common_of(const Outcomes& outcomes, const GridShape& rare) {
  const auto low = rare.from > -kInfinity ? outcomes.at(rare.from) : outcomes.below_all();
  const auto high = rare.to < kInfinity ? outcomes.at(rare.to) : outcomes.above_all();
  const auto [p, q] = outcomes.between(low, high, 0);
  // What lies beyond the outermost outcomes is below 1e-300.
  const double most_p = p.value + p.error + 1e-300;
  const double most_q = q.value + q.error + 1e-300;
  const double least_p = std::max(0.0, p.value - p.error);
  const double least_q = std::max(0.0, q.value - q.error);
  const auto rounded = [](double x, double sign) { return x + sign * 4 * kRounding * std::abs(x); };
  return {rounded(std::log1p(-most_p), -1), rounded(std::log1p(-least_p), 1),
          rounded(std::log1p(-most_p), -1) - rounded(std::log1p(-least_q), 1) - 1e-300,
          rounded(std::log1p(-least_p), 1) - rounded(std::log1p(-most_q), -1) + 1e-300, most_p};
}

// Cells of losses about i·h + origin.
struct Range {
  int64_t begin, end;
};
Range range_of(Direction direction, SampledGaussian release, const GridShape& grid, double origin, double at) {
  auto [least, most] = losses_of(direction, release, grid.low, grid.high);
  least = std::max(std::min(least, grid.to - grid.h), grid.from);  // one cell at least down from a finite end
  most = std::min(most, grid.to);
  if (!(least < most)) return {0, 0};
  return {static_cast<int64_t>(std::floor((least - origin) / grid.h - at)),
          static_cast<int64_t>(std::floor((most - origin) / grid.h - at)) + 1};
}

Outcomes::Boundary boundary_at(const Outcomes& outcomes, const GridShape& grid, double loss) {
  return outcomes.at(std::clamp(loss, grid.from, grid.to));
}

Outcomes::Boundary lower_end(const Outcomes& outcomes, const GridShape& grid) {
  return grid.from > -kInfinity ? outcomes.at(grid.from) : outcomes.below_all();
}
// P of the outcomes below this boundary, rounded up.
double mass_before(const Outcomes& outcomes, const GridShape& grid, const Outcomes::Boundary& boundary) {
  if (grid.from > -kInfinity) return 0;
  const Outcomes::Mass p = outcomes.between(outcomes.below_all(), boundary, 0).p;
  return p.value + p.error;
}

// Of e^(c·loss) and the few products it is in.
double of_tilt(const GridShape& grid, double loss) { return kRounding * (12 + 2 * grid.c * std::abs(loss)); }

}  // namespace

GridShape common_part(Direction direction, const Split& split, GridShape grid) {
  (direction == Direction::kRemove ? grid.to : grid.from) = direction == Direction::kRemove ? split.loss : -split.loss;
  return grid;
}

RareCells less_private_rare(Direction direction, SampledGaussian release, const Split& split, const GridShape& grid) {
  const GridShape rare = rare_part(direction, split, grid);
  const Outcomes outcomes(direction, release);
  const Common common = common_of(outcomes, rare);
  const double h = grid.h;
  const double width = -std::expm1(-h);
  const double ratio = std::exp(grid.c * h);
  const double scale = std::exp(-common.least_log_p) * (1 + 4 * kRounding);
  const double origin = common.least_loss;
  const Range range = range_of(direction, release, rare, origin, 0);
  std::vector<std::pair<int64_t, double>> placed = {{0, 1.0}};
  RareCells found;
  double relative = 0;
  const auto put = [&](int64_t i, double left, double right, double off) {  // as in pld_cells.cpp
    const double loss = static_cast<double>(i) * h;
    if (grid.c * loss > kLargestExponent) {
      found.cells.dropped += (left + right) * scale * (1 + 1e-12);
      return;
    }
    const double tilt = scale * std::exp(grid.c * loss);
    const double over = right * std::min(1.0, off / width);
    placed.emplace_back(i, left * tilt);
    placed.emplace_back(i + 1, (right - over) * tilt * ratio);
    placed.emplace_back(i + 2, over * tilt * ratio * ratio);
    relative = std::max(relative, of_tilt(grid, std::abs(loss) + 2 * h));
  };
  // Of boundaries i·h above the origin, whose own roundings are counted too.
  const auto off_at = [&](double loss) {
    return outcomes.misplaced(loss) + kRounding * (std::abs(loss) + 2 * std::abs(origin));
  };
  double end = rare.from;
  Outcomes::Boundary low = lower_end(outcomes, rare);
  if (!(rare.from > -kInfinity) && range.begin < range.end) {
    const double first = static_cast<double>(range.begin) * h + origin;
    low = boundary_at(outcomes, rare, first);
    put(range.begin - 1, 0, mass_before(outcomes, rare, low), off_at(first));
  }
  for (int64_t i = range.begin; i < range.end; ++i) {
    const double loss = static_cast<double>(i) * h;
    end = std::clamp(loss + h + origin, rare.from, rare.to);
    const Outcomes::Boundary high = outcomes.at(end);
    const auto [p, q] = outcomes.between(low, high, loss + origin);  // q: of Q·e^loss
    low = high;
    const double total = p.value + p.error;
    if (!(total > 0)) continue;
    const double off = std::max(off_at(loss + origin), off_at(loss + h + origin));
    const double error = (p.error + q.error + 8 * kRounding * (p.value + q.value) + off * q.value) / width;
    const double right = q.value < kInfinity ? std::clamp((p.value - q.value) / width + error, 0.0, total) : total;
    put(i, total - right, right, off);
  }
  const double dropped = found.cells.dropped + (end < rare.to ? outcomes.beyond(low) * scale * (1 + 1e-12) : 0);
  found.cells = placed_on_grid(placed, 0, grid, 0);
  found.cells.dropped = dropped;
  found.cells.relative = relative;
  return found;
}

namespace {

// Rare outcomes merged into one for each cell. Cell i should lie at i·h above the origin: its boundaries are moved
// until it does, but for little.
class MergedRare {
 public:
  struct Merged {
    double mass = 0;
    double excess = -kInfinity;  // of log(P/Q), in steps, rounded down
  };

  MergedRare(const Outcomes& outcomes, const GridShape& rare, double origin, Range range)
      : outcomes_(outcomes),
        rare_(rare),
        origin_(origin),
        begin_(range.begin),
        merged_(static_cast<size_t>(range.end - range.begin)),
        moved_(merged_.size() + 1, 0.0) {
    const size_t count = merged_.size();
    merge(count);
    for (int round = 0; round < kRounds; ++round) even_out(count);
    for (int round = 0; round < kRoundsNear; ++round) even_out(std::min(count, kNear));
    merge(count);
  }

  const std::vector<Merged>& cells() const { return merged_; }
  int64_t index(size_t j) const { return begin_ + static_cast<int64_t>(j); }
  double loss(size_t j) const { return static_cast<double>(index(j)) * rare_.h; }  // above the origin

 private:
  void merge(size_t cells) {
    Outcomes::Boundary low = lower_end(outcomes_, rare_);
    for (size_t j = 0; j < cells; ++j) {
      const double from_zero = loss(j) + origin_;
      const Outcomes::Boundary high = boundary_at(outcomes_, rare_, from_zero + (0.5 + moved_[j + 1]) * rare_.h);
      const auto [p, q] = outcomes_.between(low, high, from_zero);
      low = high;
      merged_[j].mass = std::max(0.0, p.value - p.error);
      merged_[j].excess =
          merged_[j].mass > 0 && q.value + q.error > 0
              ? (std::log(merged_[j].mass / (q.value + q.error)) - 8 * kRounding * (1 + std::abs(from_zero))) / rare_.h
              : -kInfinity;
    }
  }
  void even_out(size_t cells) {
    for (size_t j = 1; j < cells; ++j)
      if (std::abs(merged_[j - 1].excess) < 1 && std::abs(merged_[j].excess) < 1)
        moved_[j] = std::clamp(moved_[j] - (merged_[j - 1].excess + merged_[j].excess) / 2, -0.45, 0.45);
    merge(cells);
  }

  const Outcomes& outcomes_;
  const GridShape& rare_;
  double origin_;
  int64_t begin_;
  std::vector<Merged> merged_;
  std::vector<double> moved_;
};

// P(more than K of them, `mean` on average) <= e^(K+1-mean)·(mean/(K+1))^(K+1) if the mean is less than K + 1.
double probability_of_more(double most, double mean, double count) {
  const double more = most + 1;
  if (most >= count) return 0;
  if (!(mean < more)) return 1;
  return std::min(1.0, std::exp((more - mean) + more * std::log(mean / more) + 1e-9 * (1 + more)));
}

}  // namespace

RareCells more_private_rare(Direction direction, SampledGaussian release, const Split& split, const GridShape& grid) {
  const GridShape rare = rare_part(direction, split, grid);
  const Outcomes outcomes(direction, release);
  const Common common = common_of(outcomes, rare);
  const double h = grid.h;
  const double scale = std::exp(-common.most_log_p) * (1 - 4 * kRounding);
  const double origin = common.most_loss;
  const MergedRare merged(outcomes, rare, origin, range_of(direction, release, rare, origin, -0.5));
  const auto& cells = merged.cells();
  // All rare ones are moved down until all but few cells lie where they are put; those fall one step more. K times that
  // is taken off the whole instead, so that the grid stays where it is.
  CheapestWayDown down(2, 80);
  double expected = 0;
  const auto tilted = [&](size_t j) {
    return scale * cells[j].mass * std::exp(std::min(grid.c * merged.loss(j), kLargestExponent));
  };
  for (size_t j = 0; j < cells.size(); ++j) {
    const double weight = grid.count * tilted(j);
    down.add(cells[j].excess, weight);
    expected += weight;
  }
  const double most = split.most_rare;
  down.add(0, std::max(0.0, most - expected));
  const double below = down.power_of_half();
  std::vector<std::pair<int64_t, double>> placed = {{0, 1.0}};
  double relative = 0;
  for (size_t j = 0; j < cells.size(); ++j) {
    if (!(cells[j].excess >= -below - 1)) continue;  // leaving mass out is sound
    const bool fits = cells[j].excess >= -below;
    const int64_t i = merged.index(j);
    placed.emplace_back(fits ? i : i - 1, tilted(j) * (fits ? 1 : std::exp(-grid.c * h)));
    relative = std::max(relative, of_tilt(grid, static_cast<double>(i) * h));
  }
  RareCells found;
  found.cells = placed_on_grid(placed, 0, grid, 0);
  found.cells.relative = relative;
  found.once.log_factor = most * common.least_log_p;
  found.once.moved = most * (std::min(common.least_loss / h, common.least_loss / h * (1 + 4 * kRounding)) -
                             below * (1 + 4 * kRounding));
  found.once.dropped = probability_of_more(most, grid.count * common.rare * (1 + 1e-12), grid.count);
  return found;
}

}  // namespace ghostshard::accountant
