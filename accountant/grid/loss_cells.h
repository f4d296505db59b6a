// The cells of losses that both distributions of pld_cells.h are made from: which there are, where they begin and end,
// and how much of their roundings is counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/grid/outcomes.h"
#include "accountant/grid/pld_cells.h"

namespace ghostshard::accountant {

// Cell i holds the losses from (i + at)·h + moved[i - begin]·h to the next boundary, but none before `from` and none
// from `to` on.
struct Cells {
  int64_t begin, end;
  double h, from, to;
  double at = 0;
  std::vector<double> moved{};
  bool open = true;  // the first cell holds all that lies below it besides

  double loss_of(int64_t i) const { return (static_cast<double>(i) + at) * h; }  // lower end, before it is moved
  double upper_end(int64_t i) const;                                             // of cell i, a loss
  Outcomes::Boundary boundary(const Outcomes& outcomes, int64_t i) const;        // below cell i
};

// Even cells for all outcomes that the grid looks at.
Cells cells_of(Direction direction, SampledGaussian release, const GridShape& shape, double at);

// P of what lies below the first cell if that is not open, rounded up.
double mass_before(const Outcomes& outcomes, const Cells& cells);

// Calls visit(i, P, Q·e^loss) for each cell from first to before end, with loss = cells.loss_of(i) and the roundings of
// both masses. Returns the upper boundary of the last one.
template <class Visitor>
Outcomes::Boundary for_some_cells(const Outcomes& outcomes, const Cells& cells, int64_t first, int64_t end,
                                  const Visitor& visit) {
  Outcomes::Boundary low = cells.boundary(outcomes, first);
  for (int64_t i = first; i < end; ++i) {
    const Outcomes::Boundary high = cells.boundary(outcomes, i + 1);
    const auto [p, lifted_q] = outcomes.between(low, high, cells.loss_of(i));
    visit(i, p, lifted_q);
    low = high;
  }
  return low;
}

// Of all cells. Returns the probability P of the outcomes beyond the last one.
template <class Visitor>
double for_each_cell(const Outcomes& outcomes, const Cells& cells, const Visitor& visit) {
  const Outcomes::Boundary last = for_some_cells(outcomes, cells, cells.begin, cells.end, visit);
  return cells.upper_end(cells.end - 1) < cells.to ? outcomes.beyond(last) : 0;
}

// log Σ mass·e^(c'·loss) at each of kMomentShares, even if the exponentials are too large for a double.
class LossMoments {
 public:
  using Masses = std::array<double, kMomentShares.size()>;  // one for each c'
  // Of cells whose losses are (i + offset)·h. tilt: masses are those of e^(tilt·loss) already.
  LossMoments(double c, double tilt, double h, double offset);
  double c(size_t j) const { return c_[j]; }
  // Cells that lie near the one before share its exponential.
  void add(int64_t i, const Masses& masses) {
    if (!(i >= first_ && i - first_ < size_)) begin_block(i);
    for (size_t j = 0; j < c_.size(); ++j) block_[j] += masses[j] * turns_[static_cast<size_t>(i - first_)][j];
  }
  // All masses being e^log_scale times what was added. Rounded up by more than 1e7 terms and their exponents err.
  std::vector<std::pair<double, double>> logs(double log_scale);

 private:
  static constexpr int64_t kMostInBlock = 64;
  double slope(size_t j) const { return (c_[j] - tilt_) * h_; }  // of the exponents, from cell to cell
  void begin_block(int64_t i);
  void end_block();

  double tilt_, h_, offset_;
  std::array<double, kMomentShares.size()> c_{}, base_{}, sum_{};
  Masses block_{};                            // sums over the block, relative to its first cell's exponential
  std::array<Masses, kMostInBlock> turns_{};  // the exponentials of its cells, relative to the first one's
  int64_t first_ = std::numeric_limits<int64_t>::max();
  int64_t size_ = kMostInBlock;
};

// The place of cell i on a circular grid of n points, n a power of two.
inline size_t wrapped(int64_t i, size_t n) { return static_cast<size_t>(i) & (n - 1); }

// Relative rounding of e^(c·loss - log_scale) and of the few products it is in.
double tilt_rounding(const GridShape& shape, double loss);

// Counts this relative rounding of a mass: with the mass if it is large, and for all masses alike if it is moderate.
void note_rounding(TiltedCells& cells, double relative, double mass);

}  // namespace ghostshard::accountant
