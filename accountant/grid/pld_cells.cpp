#include "accountant/grid/pld_cells.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/grid/outcomes.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How much work goes into the cells of the more private distribution.
constexpr int64_t kMostSolved = 60;
constexpr int64_t kNearEdge = 200;
constexpr int64_t kAlternating = 8;
constexpr int kMostTries = 44;
constexpr size_t kSmallGrid = size_t{1} << 15;

// Boundaries of cells: cell i holds the losses from (i + at)·h + moved[i - begin]·h to the next, but none before `from`
// and none from `to` on.
struct Cells {
  int64_t begin, end;
  double h, from, to;
  double at = 0;
  std::vector<double> moved;

  double upper_end(int64_t i) const {  // of cell i, a loss
    const auto index = static_cast<size_t>(i + 1 - begin);
    const double place = (static_cast<double>(i + 1) + at + (index < moved.size() ? moved[index] : 0.0)) * h;
    return std::clamp(place, from, to);
  }
  Outcomes::Boundary boundary(const Outcomes& outcomes, int64_t i) const {  // below cell i
    if (i > begin) return outcomes.at(upper_end(i - 1));
    // What lies below the least loss looked at is counted in the first cell, which can only raise its loss.
    return from > -kInfinity ? outcomes.at(from) : outcomes.below_all();
  }
};

Cells cells_of(Direction direction, SampledGaussian release, const GridShape& shape, double at) {
  auto [least, most] = losses_of(direction, release, shape.low, shape.high);
  least = std::max(least, shape.from);
  most = std::max(least, std::min(most, shape.to));
  return {static_cast<int64_t>(std::floor(least / shape.h - at)),
          static_cast<int64_t>(std::floor(most / shape.h - at)) + 1,
          shape.h,
          shape.from,
          shape.to,
          at,
          {}};
}

// Calls visit(i, P, Q·e^loss) for all cells, loss that of the lower end without what it was moved by, with the
// roundings of both. Returns the probability P beyond them.
template <class Visitor>
double for_each_cell(const Outcomes& outcomes, const Cells& cells, const Visitor& visit) {
  Outcomes::Boundary low = cells.boundary(outcomes, cells.begin);
  for (int64_t i = cells.begin; i < cells.end; ++i) {
    const Outcomes::Boundary high = cells.boundary(outcomes, i + 1);
    const auto [p, lifted_q] = outcomes.between(low, high, (static_cast<double>(i) + cells.at) * cells.h);
    visit(i, p, lifted_q);
    low = high;
  }
  return cells.upper_end(cells.end - 1) < cells.to ? outcomes.beyond(low) : 0;
}

constexpr double kModerate = 64 * kRounding;  // roundings of a mass, to be counted relative to it

// Relative rounding of e^(c·loss - log_scale), a few of them multiplied.
double of_tilt(const GridShape& shape, double loss) {
  return kRounding * (8 + 2 * (shape.c * loss + std::abs(shape.log_scale)));
}

size_t wrapped(int64_t i, size_t n) { return static_cast<size_t>(i) & (n - 1); }  // n is a power of two

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

// log Σ mass·e^exponent where the exponents may be too large for a double; rounded up.
class LogSum {
 public:
  void add(double mass, double exponent) {
    if (exponent > base_ + kFar) {
      sum_ *= std::exp(std::max(base_ - exponent, -kFarthest));
      base_ = exponent;
    }
    sum_ += mass * std::exp(std::max(exponent - base_, -kFarthest));
  }
  double log() const { return base_ + std::log(sum_) + 1e-9; }

 private:
  static constexpr double kFar = 300;
  static constexpr double kFarthest = 600;  // what is smaller is counted as large as this
  double base_ = 0, sum_ = 0;
};

void note_rounding(TiltedCells& cells, double relative, double mass) {
  if (relative <= kModerate)
    cells.relative = std::max(cells.relative, relative);
  else
    cells.rounding += relative * mass;
}

}  // namespace

TiltedCells less_private_cells(Direction direction, SampledGaussian release, const GridShape& shape) {
  TiltedCells cells;
  cells.mass.assign(shape.n, 0);
  const double h = shape.h;
  const double width = -std::expm1(-h);
  struct Moment {
    double c, step;  // e^(c·h)
    LogSum sum;
  };
  std::vector<Moment> moments;
  for (const double share : kMomentShares) moments.push_back({shape.c * share, std::exp(shape.c * share * h), {}});
  const Cells even = cells_of(direction, release, shape, 0);
  double too_rare = 0;  // for the tilt to be a double
  cells.dropped = for_each_cell(
      Outcomes(direction, release), even, [&](int64_t i, const Outcomes::Mass& p, const Outcomes::Mass& q) {
        const double loss = static_cast<double>(i) * h;
        const double total = p.value + p.error;
        if (!(total > 0)) return;
        const double exponent = shape.c * loss - shape.log_scale;
        if (exponent > 700) {
          too_rare += total * (1 + 1e-12);
          return;
        }
        // Where Q·e^loss is beyond a double, as of all that lies below the first cell, all of P goes to the left.
        const double error = (p.error + q.error + 4 * kRounding * (p.value + q.value)) / width;
        const double right = q.value < kInfinity ? std::clamp((p.value - q.value) / width + error, 0.0, total) : 0;
        const double left = total - right;
        const double tilt = std::exp(exponent);
        cells.mass[wrapped(i, shape.n)] += left * tilt;
        cells.mass[wrapped(i + 1, shape.n)] += right * tilt * std::exp(shape.c * h);
        note_rounding(cells, of_tilt(shape, std::abs(loss) + h), (left + right * std::exp(shape.c * h)) * tilt);
        for (auto& [c, step, sum] : moments) sum.add(left + right * step, c * loss);
      });
  cells.dropped += too_rare;
  for (const auto& [c, step, sum] : moments) cells.moments.emplace_back(c, sum.log());
  return cells;
}

TiltedCells more_private_cells(Direction direction, SampledGaussian release, const GridShape& shape) {
  struct Merged {
    int64_t i;
    double place;  // of log(P/Q) above the lower boundary of the even cell, in units of h, rounded down
    double weight;
  };
  const double h = shape.h;
  const Outcomes outcomes(direction, release);
  const auto place_of = [&](double loss, const Outcomes::Mass& p, const Outcomes::Mass& lifted_q) {
    const double mass = p.value - p.error;
    if (!(mass > 0 && lifted_q.value + lifted_q.error > 0)) return -1.0;
    return (std::log(mass / (lifted_q.value + lifted_q.error)) - 4 * kRounding * (1 + std::abs(loss))) / h;
  };
  const auto merge = [&](const Cells& cells) {
    std::vector<Merged> merged;
    merged.reserve(static_cast<size_t>(cells.end - cells.begin));
    (void)for_each_cell(outcomes, cells, [&](int64_t i, const Outcomes::Mass& p, const Outcomes::Mass& lifted_q) {
      const double loss = (static_cast<double>(i) + cells.at) * h;
      const double mass = std::max(0.0, p.value - p.error);
      const double weight = mass * std::exp(std::min(shape.c * loss - shape.log_scale, 700.0));
      merged.push_back({i, place_of(loss, p, lifted_q), weight});
    });
    return merged;
  };
  // Half a cell above its lower boundary is where log(P/Q) should lie; three things are free to get it there.
  //  * Where the density rises from nothing within a few cells of the least loss, each boundary is put where the cell
  //    below it needs it: what one is off by falls from cell to cell as long as the density rises.
  //  * From the heaviest cell on, each is moved by the mean of what the cells on both sides want: where the density is
  //    smooth, what is left falls with a power of h every time. Where the density falls from the edge itself, as with
  //    small rates, it does not, and boundaries are put where the cell above needs them, from the smooth part down.
  //  * That leaves the heaviest cell itself, for which the whole grid is moved.
  const auto heaviest_of = [](const std::vector<Merged>& merged) {
    return std::max_element(merged.begin(), merged.end(),
                            [](const Merged& a, const Merged& b) { return a.weight < b.weight; })
        ->i;
  };
  Cells cells = cells_of(direction, release, shape, 0);
  const int64_t heaviest = heaviest_of(merge(cells));
  const auto boundary = [&](int64_t i) { return cells.boundary(outcomes, i); };
  const auto excess_of = [&](int64_t i, const Outcomes::Boundary& from, const Outcomes::Boundary& to) {
    const double loss = (static_cast<double>(i) + cells.at) * h;
    const auto [p, lifted_q] = outcomes.between(from, to, loss);
    return place_of(loss, p, lifted_q) - 0.5;
  };
  const auto move = [&](int64_t i) -> double& { return cells.moved[static_cast<size_t>(i - cells.begin)]; };
  const auto even_out = [&](int64_t begin, int64_t end) {
    if (begin + 2 >= end) return;
    Outcomes::Boundary from = boundary(begin);
    Outcomes::Boundary to = boundary(begin + 1);
    double excess_below = excess_of(begin, from, to);
    for (int64_t i = begin + 1; i < end; ++i) {
      from = to;
      to = boundary(i + 1);
      const double excess = excess_of(i, from, to);
      if (std::abs(excess) < 1 && std::abs(excess_below) < 1)
        move(i) = std::clamp(move(i) - (excess + excess_below) / 2, -0.45, 0.45);
      excess_below = excess;
    }
  };
  const int rounds = shape.n > kSmallGrid ? 48 : 16;
  int64_t solved = 0;
  // Over fewer cells each time: the last one moved has been evened out with those behind it.
  const auto even_out_near = [&](int64_t reach, int times) {
    for (int left = times; left-- > 0;) even_out(solved, std::min(cells.end, solved + reach + int64_t{4} * left));
  };
  const auto arrange = [&](double at, int all = 0) {  // what the heaviest is off by
    cells = cells_of(direction, release, shape, at);
    cells.moved.assign(static_cast<size_t>(cells.end - cells.begin) + 1, 0.0);
    const int64_t middle = std::clamp(heaviest, cells.begin, cells.end - 1);
    Outcomes::Boundary low = boundary(cells.begin);
    solved = std::min(middle, cells.begin + kMostSolved);
    for (int64_t i = cells.begin; i < solved; ++i) {
      move(i + 1) = crossing(-0.45, 0.45, [&](double moved) {
        move(i + 1) = moved;
        return excess_of(i, low, boundary(i + 1));
      });
      low = boundary(i + 1);
    }
    // Once and without sampling: the density has no edge, even cells are all but as good, and there are many of them.
    const bool even_enough = release.q == 1 && shape.count == 1;
    for (int round = 0; round < all && !even_enough; ++round) even_out(solved, cells.end);
    if (all > 1) even_out_near(10 * kNearEdge, 16);
    even_out_near(kNearEdge, rounds);
    if (solved < middle) {
      // Where evening out has come to rest, what is left alternates from cell to cell.
      double left = 0;
      double weight = 0;
      Outcomes::Boundary from = boundary(middle);
      for (int64_t i = middle; i < std::min(cells.end, middle + kAlternating); ++i) {
        const Outcomes::Boundary to = boundary(i + 1);
        const double mass = outcomes.between(from, to, 0).p.value;
        const double excess = std::clamp(excess_of(i, from, to), -1.0, 1.0);
        left += (i - middle) % 2 == 0 ? mass * excess : -mass * excess;
        weight += mass;
        from = to;
      }
      return weight > 0 ? left / weight : 0.0;
    }
    // Right above an edge it alternates for long. From where the density is smooth down to the heaviest cell, which has
    // then both its boundaries from others.
    Outcomes::Boundary high = boundary(std::min(cells.end - 1, middle + kMostSolved) + 1);
    for (int64_t i = std::min(cells.end - 1, middle + kMostSolved); i > middle; --i) {
      move(i) = crossing(-0.45, 0.45, [&](double moved) {
        move(i) = moved;
        return excess_of(i, boundary(i), high);
      });
      high = boundary(i);
    }
    return std::clamp(excess_of(middle, boundary(middle), high), -1.0, 1.0);
  };
  double at = 0;
  for (int i = 0; i < 4; ++i) {  // with even cells first
    cells = cells_of(direction, release, shape, at);
    const int64_t middle = std::clamp(heaviest, cells.begin, cells.end - 1);
    at += std::clamp(excess_of(middle, boundary(middle), boundary(middle + 1)), -0.5, 0.5);
  }
  double off = arrange(at);
  if (shape.n > kSmallGrid) {
    // From where its sign changes nearest by, if it does.
    double best = kInfinity;
    const double middle = at;
    double there = arrange(middle - 0.5);
    for (int i = -7; i <= 8; ++i) {
      const double next = arrange(middle + i / 16.0);
      if (there * next <= 0 && std::abs(there) + std::abs(next) < best) {
        best = std::abs(there) + std::abs(next);
        at = middle + (i - 1) / 16.0;
        off = there;
      }
      there = next;
    }
    if (best < kInfinity) {
      double low = at;
      double high = at + 1.0 / 16;
      double at_high = arrange(high);
      for (int i = 0; i < 14 && std::abs(off) > 1e-9; ++i) {
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
      at = std::abs(off) < std::abs(at_high) ? low : high;
    }
    (void)arrange(at, 2);
  } else {
    double gain = 1;
    for (int i = 0; i < 4 && std::abs(off) > 1e-9; ++i) {
      const double next = at + std::clamp(gain * off, -0.5, 0.5);
      const double there = arrange(next);
      if (off != there) gain = std::clamp((next - at) / (off - there), 0.3, 5.0);
      at = next;
      off = there;
    }
    (void)arrange(at, 2);
  }
  const std::vector<Merged> merged = merge(cells);
  // How far below the middle the grid must lie for few cells to fall below it: each of those moves down a whole step.
  // What all of them lose adds up over the executions; with small rates, one execution with a loss beyond epsilon is
  // what delta consists of, and what those few cells lose counts once, however light they are.
  const auto place_in_delta = [&](const Merged& cell) {
    const double beyond = (static_cast<double>(cell.i) + cells.at) * h - shape.epsilon;
    return beyond > 0 ? cell.weight * std::exp(-shape.c * beyond) * -std::expm1(-beyond) : 0.0;
  };
  double delta = 0;
  for (const Merged& cell : merged) delta += place_in_delta(cell);
  std::vector<Misplaced> misplaced;
  misplaced.reserve(merged.size());
  for (const Merged& cell : merged)
    misplaced.push_back(
        {cell.place - 0.5, shape.count * cell.weight + (delta > 0 ? place_in_delta(cell) / delta : 0.0)});
  const double below = cheapest_power_of_half(1, 80, misplaced);
  TiltedCells found;
  found.shift = at + 0.5 - below;
  found.mass.assign(shape.n, 0);
  const double whole = std::exp(shape.c * h * (found.shift - at));  // `at` was in the weight
  const double down = std::exp(-shape.c * h);
  for (const Merged& cell : merged) {
    if (!(cell.place >= -0.5 - below)) continue;  // too far down to be worth keeping: what is left out is sound
    const bool fits = cell.place >= 0.5 - below;
    const double mass = cell.weight * whole * (fits ? 1 : down);
    found.mass[wrapped(fits ? cell.i : cell.i - 1, shape.n)] += mass;
    note_rounding(found, of_tilt(shape, (std::abs(static_cast<double>(cell.i)) + 2) * h), mass);
  }
  return found;
}

double cheapest_power_of_half(int first, int last, const std::vector<Misplaced>& cells) {
  // Moved down by b, a cell costs its weight times (excess + b), and one step more where that is negative.
  double all = 0;
  double weights = 0;
  std::vector<double> falls(static_cast<size_t>(last - first) + 2, 0.0);  // from this power of half on
  for (const auto& [excess, weight] : cells) {
    if (!(weight > 0 && std::isfinite(weight) && std::isfinite(excess))) continue;
    all += weight * excess;
    weights += weight;
    if (excess >= 0) continue;
    const double power = std::floor(-2 * std::log2(-excess)) + 1;
    falls[static_cast<size_t>(std::clamp(power - first, 0.0, static_cast<double>(last - first + 1)))] += weight;
  }
  double cheapest = 0;
  double least = kInfinity;
  double fallen = 0;
  for (int k = first; k <= last; ++k) {
    fallen += falls[static_cast<size_t>(k - first)];
    const double candidate = std::pow(0.5, 0.5 * k);
    const double found = all + weights * candidate + fallen;
    if (found < least) {
      least = found;
      cheapest = candidate;
    }
  }
  return cheapest;
}

}  // namespace ghostshard::accountant
