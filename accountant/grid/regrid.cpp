#include "accountant/grid/regrid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/grid/misplaced.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kRounds = 8;  // of evening out

// What of the moments is wanted (pld_cells.h), measured: nothing but the given numbers counts. 1e-9 for its rounding.
void measure(TiltedCells& cells, const std::vector<std::pair<int64_t, double>>& placed, double c, double h,
             double log_scale) {
  struct Logarithm {
    double loss, mass;
  };
  std::vector<Logarithm> logarithms;
  logarithms.reserve(placed.size());
  for (const auto& [k, mass] : placed)
    if (mass > 0) logarithms.push_back({(static_cast<double>(k) + cells.shift) * h, std::log(mass)});
  const auto log_moment = [&](double other) {
    double top = -kInfinity;
    for (const auto& [loss, mass] : logarithms) top = std::max(top, mass + (other - c) * loss);
    double sum = 0;
    for (const auto& [loss, mass] : logarithms) sum += std::exp(mass + (other - c) * loss - top);
    return top + std::log(sum) + log_scale + 1e-9 * (1 + std::abs(top) + std::abs(log_scale));
  };
  for (const double share : kMomentShares) cells.moments.emplace_back(c * share, log_moment(c * share));
  cells.log_total = log_moment(0);
}

void place(TiltedCells& cells, const std::vector<std::pair<int64_t, double>>& placed, size_t n) {
  cells.mass.assign(n, 0);
  for (const auto& [k, mass] : placed) cells.mass[static_cast<size_t>(k) & (n - 1)] += mass;
}

}  // namespace

TiltedCells placed_on_grid(const std::vector<std::pair<int64_t, double>>& placed, double shift, const GridShape& grid,
                           double log_scale) {
  TiltedCells cells;
  cells.shift = shift;
  measure(cells, placed, grid.c, grid.h, log_scale);
  place(cells, placed, grid.n);
  return cells;
}

TiltedCells connected_dots(const FineMasses& fine, const GridShape& grid) {
  const auto low = static_cast<int64_t>(std::floor(fine.first / grid.h)) - 1;
  const double last = fine.first + fine.h * static_cast<double>(fine.mass.size());
  std::vector<std::pair<int64_t, double>> placed;
  for (int64_t k = low; k <= static_cast<int64_t>(std::floor(last / grid.h)) + 2; ++k) placed.emplace_back(k, 0.0);
  const double width = -std::expm1(-grid.h);
  for (size_t j = 0; j < fine.mass.size(); ++j) {
    if (!(fine.mass[j] > 0)) continue;
    const double loss = fine.first + fine.h * static_cast<double>(j);
    auto k = static_cast<int64_t>(std::floor(loss / grid.h));
    if (loss - static_cast<double>(k) * grid.h >= grid.h) ++k;  // the quotient was rounded
    const double above = std::max(0.0, loss - static_cast<double>(k) * grid.h);
    // Roundings of the loss, of up to 1e6 steps of the mesh, to the right.
    const double share =
        std::clamp(-std::expm1(-above) / width + 8 * kRounding * (1 + std::abs(loss) / grid.h), 0.0, 1.0);
    const auto index = static_cast<size_t>(k - low);
    placed[index].second += fine.mass[j] * (1 - share) * std::exp(-fine.c * above);
    placed[index + 1].second += fine.mass[j] * share * std::exp(fine.c * (grid.h - above));
  }
  TiltedCells cells = placed_on_grid(placed, 0, grid, fine.log_scale);
  const double span = std::abs(fine.first) + std::abs(last);
  cells.relative = kRounding * (24 + 2 * grid.h / fine.h + 8 * fine.c * span);
  return cells;
}

namespace {

// Neighbours on the fine grid merged into one outcome of loss log(P/Q) for each point of the coarse one. The boundaries
// between them may cut through a point (an outcome may be told apart at random); they are moved until the outcome lies
// on the coarse grid, but for little.
class MergedNeighbours {
 public:
  struct Group {
    double p = 0, q = 0;
    double excess = 0;  // of log(P/Q) over the level, in coarse steps
  };

  MergedNeighbours(const FineMasses& fine, const GridShape& grid)
      : fine_(fine),
        h_(grid.h),
        ratio_(grid.h / fine.h),
        low_(static_cast<int64_t>(std::floor(fine.first / grid.h))),
        last_(fine.first + fine.h * static_cast<double>(fine.mass.size())) {
    scale_from_mode();
    groups_.resize(static_cast<size_t>(static_cast<int64_t>(std::floor(last_ / h_)) - low_ + 2));
    cut_evenly();
    for (int round = 0; round < kRounds; ++round) {
      sum_up();
      even_out();
    }
    sum_up();
  }

  const std::vector<Group>& groups() const { return groups_; }
  int64_t place(size_t i) const { return low_ + static_cast<int64_t>(i); }  // of group i on the coarse grid
  double level(size_t i) const {                                            // the loss there, beyond the mode
    return static_cast<double>(place(i)) * h_ - fine_.first - centre_;
  }

 private:
  // P and Q of each point relative to those of the heaviest.
  void scale_from_mode() {
    const size_t size = fine_.mass.size();
    const auto mode = static_cast<size_t>(std::max_element(fine_.mass.begin(), fine_.mass.end()) - fine_.mass.begin());
    centre_ = fine_.h * static_cast<double>(mode);
    p_.resize(size);
    q_.resize(size);
    for (size_t j = 0; j < size; ++j) {
      const double away = fine_.h * static_cast<double>(j) - centre_;
      p_[j] = fine_.mass[j] * std::exp(-fine_.c * away);
      q_[j] = p_[j] * std::exp(-away);
    }
  }

  // Point j takes the place from j to j + 1.
  void cut_evenly() {
    const auto size = static_cast<double>(fine_.mass.size());
    even_.resize(groups_.size() + 1);
    for (size_t i = 0; i < even_.size(); ++i) {
      const double middle = (static_cast<double>(place(i)) - 0.5) * h_;
      even_[i] = std::clamp((middle - fine_.first) / fine_.h + 0.5, 0.0, size);
    }
    even_.front() = 0;
    even_.back() = size;
    boundary_ = even_;
  }

  void sum_up() {
    const size_t size = fine_.mass.size();
    for (size_t i = 0; i < groups_.size(); ++i) {
      Group group;
      const double from = boundary_[i];
      const double to = boundary_[i + 1];
      for (auto j = static_cast<size_t>(from); j < size && static_cast<double>(j) < to; ++j) {
        const auto at = static_cast<double>(j);
        const double share = std::min(to, at + 1) - std::max(from, at);
        group.p += share * p_[j];
        group.q += share * q_[j];
      }
      const double away = level(i);
      // Relative roundings: of a group's sums, of exponents up to (c + 1)·away, of the loss itself.
      const double rounding = kRounding * (2 * ratio_ + 40 + 8 * (fine_.c + 1) * (std::abs(away) + h_)) +
                              kRounding * 8 * (std::abs(fine_.first) + std::abs(last_));
      group.excess = group.p > 0 && group.q > 0 ? (std::log(group.p / group.q) - away - rounding) / h_ : -kInfinity;
      groups_[i] = group;
    }
  }

  void even_out() {
    for (size_t i = 1; i < groups_.size(); ++i) {
      const double both = groups_[i - 1].excess + groups_[i].excess;
      if (std::abs(groups_[i - 1].excess) < 1 && std::abs(groups_[i].excess) < 1)
        boundary_[i] = std::clamp(boundary_[i] - both / 2 * ratio_, even_[i] - 0.45 * ratio_, even_[i] + 0.45 * ratio_);
      boundary_[i] = std::clamp(boundary_[i], 0.0, static_cast<double>(fine_.mass.size()));
    }
  }

  const FineMasses& fine_;
  double h_, ratio_;
  int64_t low_;
  double last_;
  double centre_ = 0;  // the heaviest point's loss, beyond first
  std::vector<double> p_, q_;
  std::vector<double> even_, boundary_;
  std::vector<Group> groups_;
};

}  // namespace

TiltedCells merged_neighbours(const FineMasses& fine, const GridShape& grid) {
  const MergedNeighbours merged(fine, grid);
  const auto& groups = merged.groups();
  // How far the grid is moved down for all but few to lie above it; those go down a step.
  CheapestWayDown down(0, 120);
  for (size_t i = 0; i < groups.size(); ++i)
    down.add(groups[i].excess, groups[i].p > 0 ? groups[i].p * std::exp(fine.c * merged.level(i)) : 0.0);
  const double below = down.power_of_half();
  std::vector<std::pair<int64_t, double>> placed;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!(groups[i].excess >= -below - 1)) continue;  // leaving mass out is sound
    const int fallen = groups[i].excess >= -below ? 0 : 1;
    const double away = merged.level(i) - (below + fallen) * grid.h;
    placed.emplace_back(merged.place(i) - fallen, groups[i].p * std::exp(fine.c * away));
  }
  TiltedCells cells = placed_on_grid(placed, -below, grid, fine.log_scale);
  const double last = fine.first + fine.h * static_cast<double>(fine.mass.size());
  cells.relative = kRounding * (40 + 2 * (grid.h / fine.h) + 8 * fine.c * (std::abs(fine.first) + std::abs(last)));
  return cells;
}

}  // namespace ghostshard::accountant
