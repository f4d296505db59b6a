// The more private distribution (pld_cells.h): cells merged into one outcome each and moved down to the grid.
//
// Any boundaries and any offset of the grid would be sound. The best ones put log(P/Q) of every cell half a cell above
// the cell's lower end. Three things are free to get it there:
//  * Below the heaviest cell the density rises from nothing within a few cells of the least loss. There each boundary
//  is
//    put where the cell below it needs it. The error falls from cell to cell as long as the density rises.
//  * From the heaviest cell on, each boundary is moved by the mean of the errors of the cells on both sides. If the
//    density is smooth, the rest falls with a power of h every time. If the density falls from the edge itself, as with
//    small rates, it does not: then boundaries are put where the cell above needs them, from the smooth part down.
//  * That leaves the heaviest cell itself, for which the whole grid is moved.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/grid/loss_cells.h"
#include "accountant/grid/misplaced.h"
#include "accountant/grid/pld_cells.h"
#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How much work goes into the cells.
constexpr int64_t kMostSolved = 60;
constexpr int64_t kNearEdge = 200;
constexpr int64_t kAlternating = 8;
constexpr int kMostTries = 44;
constexpr size_t kSmallGrid = size_t{1} << 15;
constexpr int kRounds = 16;  // of evening out near the edge; kRoundsLarge on grids that are not small
constexpr int kRoundsLarge = 48;
constexpr double kFarthest = 0.45;    // that a boundary is moved, in steps
constexpr double kWellPlaced = 1e-9;  // the heaviest cell, in steps, or this share of one for all executions:
constexpr double kShareOfStep = 1e-3;
constexpr double kWellPlacedOnce = 1e-5;
constexpr double kEvenEnough = 1e-4;  // any cell that is evened out, or kShareOfStep for all executions
constexpr int64_t kEvenInTurn = 64;
constexpr double kContinuous = 0.5;       // a change of sign that is less is no jump
constexpr int64_t kLookAtEach = 1024;     // cells, from the first one on
constexpr int64_t kLooks = 4096;          // at the others
constexpr double kLargestExponent = 700;  // of a tilt
constexpr size_t kCellsOfAPart = 4096;
constexpr double kNanosecondsOfACell = 100;

// Where a rising function is nearest to 0 within [low, high]: secants that move both ends (the Illinois rule), and
// bisection in between, since next to an edge the density, and with it the function, may have a kink.
template <class Rising>
double crossing(double low, double high, const Rising& rising) {
  double at_low = rising(low);
  double at_high = rising(high);
  if (!(at_low < 0)) return low;
  if (!(at_high > 0)) return high;
  double best = -at_low < at_high ? low : high;
  double least = std::min(-at_low, at_high);
  for (int i = 0; i < kMostTries && high - low > 1e-13 && least > 1e-13; ++i) {
    const double share = i % 4 == 3 ? 0.5 : std::clamp(at_low / (at_low - at_high), 1e-3, 1 - 1e-3);
    const double middle = low + share * (high - low);
    const double value = rising(middle);
    if (std::abs(value) < least) {
      least = std::abs(value);
      best = middle;
    }
    (value < 0 ? low : high) = middle;
    (value < 0 ? at_low : at_high) = value;
    (value < 0 ? at_high : at_low) /= 2;
  }
  return best;
}

struct Merged {
  int64_t i;
  double place;  // of log(P/Q) above the lower boundary of the even cell, in units of h, rounded down
  double weight;
  double in_delta;  // what it adds to delta, about
};

class MergedCells {
 public:
  MergedCells(Direction direction, SampledGaussian release, const GridShape& shape)
      : direction_(direction),
        release_(release),
        shape_(shape),
        outcomes_(direction, release),
        cells_(cells_of(direction, release, shape, 0)),
        well_placed_(std::clamp(kShareOfStep / shape.count, kWellPlaced, kWellPlacedOnce)),
        // If a unit is added, losses end at an edge, and up to there no cell is even for certain.
        even_enough_(direction == Direction::kRemove ? std::min(kShareOfStep / shape.count, kEvenEnough) : 0) {
    find_heaviest();
  }

  // Chooses the grid's offset and moves the boundaries.
  void settle() {
    const double at = offset_for_even_cells();
    const double off = arrange(at);
    (void)arrange(shape_.n > kSmallGrid ? offset_at_sign_change(at, off) : offset_by_secants(at, off), 2);
  }

  const Cells& cells() const { return cells_; }

  std::vector<Merged> merged() const {
    std::vector<Merged> found(static_cast<size_t>(cells_.end - cells_.begin));
    in_parts(found.size(), kCellsOfAPart, kNanosecondsOfACell, [&](size_t first, size_t end) {
      for_some_cells(outcomes_, cells_, cells_.begin + static_cast<int64_t>(first),
                     cells_.begin + static_cast<int64_t>(end),
                     [&](int64_t i, const Outcomes::Mass& p, const Outcomes::Mass& lifted_q) {
                       found[static_cast<size_t>(i - cells_.begin)] = merged(i, p, lifted_q);
                     });
    });
    return found;
  }

 private:
  Merged merged(int64_t i, const Outcomes::Mass& p, const Outcomes::Mass& lifted_q) const {
    const double loss = cells_.loss_of(i);
    const double mass = std::max(0.0, p.value - p.error);
    const double weight = mass * std::exp(std::min(shape_.c * loss - shape_.log_scale, kLargestExponent));
    const double beyond = loss - shape_.epsilon;
    const double in_delta = beyond > 0 ? weight * std::exp(-shape_.c * beyond) * -std::expm1(-beyond) : 0.0;
    return {i, place_of(loss, p, lifted_q), weight, in_delta};
  }
  double place_of(double loss, const Outcomes::Mass& p, const Outcomes::Mass& lifted_q) const {
    const double mass = p.value - p.error;
    if (!(mass > 0 && lifted_q.value + lifted_q.error > 0)) return -1.0;
    return (std::log(mass / (lifted_q.value + lifted_q.error)) - 4 * kRounding * (1 + std::abs(loss))) / shape_.h;
  }
  // The heaviest of even cells: of the first ones each is looked at, of the others some.
  void find_heaviest() {
    double most = -1;
    const int64_t stride = std::max<int64_t>(1, (cells_.end - cells_.begin - kLookAtEach) / kLooks);
    for (int64_t i = cells_.begin; i < cells_.end; i += i < cells_.begin + kLookAtEach ? 1 : stride) {
      const double tilt = std::exp(std::min(shape_.c * cells_.loss_of(i) - shape_.log_scale, kLargestExponent));
      const double weight = outcomes_.between(boundary(i), boundary(i + 1), 0).p.value * tilt;
      if (!(weight > most)) continue;
      most = weight;
      heaviest_ = i;
    }
  }

  Outcomes::Boundary boundary(int64_t i) const { return cells_.boundary(outcomes_, i); }
  // By how much log(P/Q) between these boundaries lies above the middle of cell i, in steps.
  double excess_of(int64_t i, const Outcomes::Boundary& from, const Outcomes::Boundary& to) const {
    const double loss = cells_.loss_of(i);
    const auto [p, lifted_q] = outcomes_.between(from, to, loss);
    return place_of(loss, p, lifted_q) - 0.5;
  }
  double& move(int64_t i) {
    const auto index = static_cast<size_t>(i - cells_.begin);
    moved_ = std::max(moved_, index + 1);
    return cells_.moved[index];
  }
  // Even cells at this offset. Few boundaries are moved while an offset is sought, and there are many.
  void even_cells(double at) {
    std::vector<double> moved = std::move(cells_.moved);
    std::fill_n(moved.begin(), std::min(moved_, moved.size()), 0.0);
    moved_ = 0;
    cells_ = cells_of(direction_, release_, shape_, at);
    moved.resize(static_cast<size_t>(cells_.end - cells_.begin) + 1, 0.0);
    cells_.moved = std::move(moved);
  }
  int64_t heaviest_cell() const { return std::clamp(heaviest_, cells_.begin, cells_.end - 1); }

  // The offset at which the heaviest of even cells is best placed.
  double offset_for_even_cells() {
    double at = 0;
    for (int i = 0; i < 4; ++i) {
      even_cells(at);
      const int64_t middle = heaviest_cell();
      at += std::clamp(excess_of(middle, boundary(middle), boundary(middle + 1)), -0.5, 0.5);
    }
    return at;
  }

  // The offset where the sign of the heaviest cell's error changes by least; `at` if there is none. First in few steps.
  double offset_at_sign_change(double at, double off) {
    double best = kInfinity;
    const double middle = at;
    double width = 0;
    for (const int steps : {8, 16}) {
      double there = arrange(middle - 0.5);
      for (int i = 1; i <= steps; ++i) {
        const double next = arrange(middle - 0.5 + static_cast<double>(i) / steps);
        if (there * next <= 0 && std::abs(there) + std::abs(next) < best) {
          best = std::abs(there) + std::abs(next);
          width = 1.0 / steps;
          at = middle - 0.5 + (i - 1) * width;
          off = there;
        }
        there = next;
      }
      if (best < kContinuous) break;
    }
    return best < kInfinity ? offset_between(at, at + width, off) : at;
  }

  // By secants and bisection; off: at `low`.
  double offset_between(double low, double high, double off) {
    double at_high = arrange(high);
    for (int i = 0; i < 14 && std::abs(off) > well_placed_; ++i) {
      double share = off / (off - at_high);
      if (!(share > 0.02 && share < 0.98) || i % 3 == 2) share = 0.5;
      const double next = low + share * (high - low);
      const double found = arrange(next);
      if (found * off > 0) {
        low = next;
        off = found;
      } else {
        high = next;
        at_high = found;
      }
    }
    return std::abs(off) < std::abs(at_high) ? low : high;
  }

  double offset_by_secants(double at, double off) {
    double gain = 1;
    for (int i = 0; i < 4 && std::abs(off) > well_placed_; ++i) {
      const double next = at + std::clamp(gain * off, -0.5, 0.5);
      const double there = arrange(next);
      if (off != there) gain = std::clamp((next - at) / (off - there), 0.3, 5.0);
      at = next;
      off = there;
    }
    return at;
  }

  // Moves the boundaries on the grid at this offset, and returns the heaviest cell's error in steps. rounds: of evening
  // out all cells.
  double arrange(double at, int rounds = 0) {
    even_cells(at);
    const int64_t middle = heaviest_cell();
    const int64_t solved = std::min(middle, cells_.begin + kMostSolved);
    solve_upwards(solved);
    // Once and without sampling: the density has no edge, even cells are all but as good, and there are many of them.
    const bool even_enough = release_.q == 1 && shape_.count == 1;
    for (int round = 0; round < rounds && !even_enough; ++round) even_out(solved, cells_.end);
    if (rounds > 1) even_out_near(solved, 10 * kNearEdge, 16);
    even_out_near(solved, kNearEdge, shape_.n > kSmallGrid && rounds > 0 ? kRoundsLarge : kRounds);
    return solved < middle ? alternating_from(middle) : solve_downwards(middle);
  }

  // Puts each boundary up to this cell where the cell below it needs it.
  void solve_upwards(int64_t end) {
    Outcomes::Boundary low = boundary(cells_.begin);
    for (int64_t i = cells_.begin; i < end; ++i) {
      move(i + 1) = crossing(-kFarthest, kFarthest, [&](double moved) {
        move(i + 1) = moved;
        return excess_of(i, low, boundary(i + 1));
      });
      low = boundary(i + 1);
    }
  }

  // Right above an edge the errors alternate for long. Boundaries are put where the cell above needs them, from the
  // smooth part of the density down to the heaviest cell, which then has both its boundaries from others.
  double solve_downwards(int64_t middle) {
    const int64_t first = std::min(cells_.end - 1, middle + kMostSolved);
    Outcomes::Boundary high = boundary(first + 1);
    for (int64_t i = first; i > middle; --i) {
      move(i) = crossing(-kFarthest, kFarthest, [&](double moved) {
        move(i) = moved;
        return excess_of(i, boundary(i), high);
      });
      high = boundary(i);
    }
    return std::clamp(excess_of(middle, boundary(middle), high), -1.0, 1.0);
  }

  // Moves each boundary between these cells by the mean of the errors of the cells on both sides, up to where the
  // errors of kEvenInTurn cells are even enough: the density is smooth from there on. Whether one was moved.
  bool even_out(int64_t begin, int64_t end) {
    if (begin + 2 >= end) return false;
    bool any = false;
    Outcomes::Boundary from = boundary(begin);
    Outcomes::Boundary to = boundary(begin + 1);
    double excess_below = excess_of(begin, from, to);
    int64_t even = 0;
    for (int64_t i = begin + 1; i < end && even < kEvenInTurn; ++i) {
      from = to;
      to = boundary(i + 1);
      const double excess = excess_of(i, from, to);
      if (std::abs(excess) < 1 && std::abs(excess_below) < 1) {
        const double before =
            std::exchange(move(i), std::clamp(move(i) - (excess + excess_below) / 2, -kFarthest, kFarthest));
        any = any || move(i) != before;
      }
      even = std::abs(excess) < even_enough_ ? even + 1 : 0;
      excess_below = excess;
    }
    return any;
  }

  // Over fewer cells each time: the last one moved has been evened out with those behind it.
  void even_out_near(int64_t solved, int64_t reach, int times) {
    bool any = true;
    for (int left = times; left-- > 0 && any;)
      any = even_out(solved, std::min(cells_.end, solved + reach + int64_t{4} * left));
  }

  // When evening out has come to rest, the errors alternate from cell to cell: their size, from this cell on.
  double alternating_from(int64_t middle) const {
    double left = 0;
    double weight = 0;
    Outcomes::Boundary from = boundary(middle);
    for (int64_t i = middle; i < std::min(cells_.end, middle + kAlternating); ++i) {
      const Outcomes::Boundary to = boundary(i + 1);
      const double mass = outcomes_.between(from, to, 0).p.value;
      const double excess = std::clamp(excess_of(i, from, to), -1.0, 1.0);
      left += (i - middle) % 2 == 0 ? mass * excess : -mass * excess;
      weight += mass;
      from = to;
    }
    return weight > 0 ? left / weight : 0.0;
  }

  Direction direction_;
  SampledGaussian release_;
  const GridShape& shape_;
  Outcomes outcomes_;
  Cells cells_;
  double well_placed_;
  double even_enough_;
  int64_t heaviest_ = 0;
  size_t moved_ = 0;  // so many boundaries, the first ones, may have been
};

// How far below the middle of the cells the grid must lie for few of them to fall below it: each of those moves down a
// whole step. What all of them lose adds up over the executions. With small rates, one execution with a loss beyond
// epsilon makes up delta, and the loss of those few cells counts once, however light they are.
double distance_below(const std::vector<Merged>& merged, double count) {
  double delta = 0;
  for (const Merged& cell : merged) delta += cell.in_delta;
  CheapestWayDown down(1, 80);
  for (const Merged& cell : merged)
    down.add(cell.place - 0.5, count * cell.weight + (delta > 0 ? cell.in_delta / delta : 0.0));
  return down.power_of_half();
}

}  // namespace

TiltedCells more_private_cells(Direction direction, SampledGaussian release, const GridShape& shape) {
  MergedCells arranged(direction, release, shape);
  arranged.settle();
  const Cells& cells = arranged.cells();
  const std::vector<Merged> merged = arranged.merged();
  const double below = distance_below(merged, shape.count);
  const double h = shape.h;
  TiltedCells found;
  found.shift = cells.at + 0.5 - below;
  found.mass.assign(shape.n, 0);
  const double whole = std::exp(shape.c * h * (found.shift - cells.at));  // the offset was in the weight
  const double down = std::exp(-shape.c * h);
  LossMoments moments(shape.c, shape.c, h, found.shift);
  for (const Merged& cell : merged) {
    if (!(cell.place >= -0.5 - below)) continue;  // too far down to be worth keeping: leaving mass out is sound
    const bool fits = cell.place >= 0.5 - below;
    const double mass = cell.weight * whole * (fits ? 1 : down);
    const int64_t place = fits ? cell.i : cell.i - 1;
    found.mass[wrapped(place, shape.n)] += mass;
    LossMoments::Masses masses;
    masses.fill(mass);
    moments.add(place, masses);
    note_rounding(found, tilt_rounding(shape, (std::abs(static_cast<double>(cell.i)) + 2) * h), mass);
  }
  found.moments = moments.logs(shape.log_scale);
  return found;
}

}  // namespace ghostshard::accountant
