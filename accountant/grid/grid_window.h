// The losses that a grid has to look at, its length, mesh and tilt. Nothing here is part of a proof.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/grid/pld_cells.h"

namespace ghostshard::accountant {

// A window of losses, and for each phase its tilt and the outcomes that are told apart.
struct Shape {
  GridShape grid;
  int64_t start;  // the window holds losses start·h, …, (start + N - 1)·h
  struct Phase {
    double log_scale, low, high;
  };
  std::vector<Phase> phases;
};

// One release's losses at some hundred outcomes, without those so rare that they do not count at this delta. Without
// them the moments stay moderate even if rare large losses would rule them. With a small rate and few steps, the best
// tilt is then orders of magnitude larger than for the whole distribution, and the window is as much shorter.
struct Sketch {
  double low, high;  // outcomes; of a table, losses
  double count;
  double log_total = 0;  // logarithm of the probability of these outcomes; the masses add up to 1
  std::vector<double> mass, loss;
  bool table = false;
};

class Sketches {
 public:
  // log_delta decides which outcomes count as rare.
  Sketches(Direction direction, const std::vector<ComposedRelease>& phases, double log_delta);

  const std::vector<Sketch>& all() const { return all_; }
  // The common losses only, and the rare ones (rare_cells.h).
  Sketches common(const std::vector<double>& splits) const { return limited(splits, false); }
  Sketches rare(const std::vector<double>& splits) const { return limited(splits, true); }
  RealMoment at(size_t phase, double c) const;  // of one execution
  RealMoment at(double c) const;                // of all
  // The outcomes of this phase, without those at the far end with a loss below this one.
  std::pair<double, double> outcomes_above(size_t phase, double loss) const;
  // The length from about this loss, or from the least one, to the largest.
  double range_above(size_t phase, double loss) const;
  // The largest distance between two losses of one release.
  double largest_range() const;
  // The variance that connecting dots with this mesh adds to the sum: h²/6 per release, under the tilt c. It keeps the
  // totals of P and Q, so that log E[e^(cL)] grows by c(1 + c)/2 of it, and epsilon by (1 + c)/2.
  double added_variance(double h, double c = 0) const;
  // The epsilon that it adds, with the grid under this tilt.
  double added_by_mesh(double h, double c) const { return (1 + c) / 2 * added_variance(h); }
  // The loss, with its sign such that large values lie on the side where losses have no bound.
  double unbounded(double loss) const { return direction_ == Direction::kRemove ? loss : -loss; }

  // The c at which rising(c, moment at c) becomes positive.
  template <class Rising>
  double root(const Rising& rising) const {
    double low = 1e-9;
    double high = 1e12;
    for (int i = 0; i < 80 && high > low * 1.005; ++i) {
      const double middle = std::sqrt(low * high);
      (rising(middle, at(middle)) < 0 ? low : high) = middle;
    }
    return std::sqrt(low * high);
  }
  double saddle_of(double epsilon) const {
    return root([&](double c, const RealMoment& m) { return m.mean - 1 / c - 1 / (1 + c) - epsilon; });
  }

 private:
  friend class AddedVariance;
  template <class Visitor>
  void for_each_loss(double c, const Visitor& visit) const;
  Sketches limited(const std::vector<double>& splits, bool rare) const;

  Direction direction_;
  std::vector<Sketch> all_;
};

// added_variance(h, c) for many h.
class AddedVariance {
 public:
  AddedVariance(const Sketches& sketches, double c);
  double at(double h) const;

 private:
  struct Point {
    double size, weight;  // of a loss, and how often it comes
  };
  std::vector<Point> points_;                // by size
  std::vector<double> of_small_, of_large_;  // sums of size·weight up to each point, and of weight from it on
};

// The epsilon at which delta is about e^log_delta, by the saddle-point approximation kept near Chernoff's bound.
struct Guess {
  double c, epsilon;
};
Guess guess_epsilon(const Sketches& sketches, double log_delta);

// A window from `first` on in which delta at `epsilon`, about e^log_delta, can be read off. saddle: that of `epsilon`.
// tolerance: of epsilon. Nothing if there is no such window, or one release alone has too many losses.
std::optional<Shape> shape_for(const Sketches& sketches, double saddle, double first, double epsilon, double log_delta,
                               double tolerance, size_t most_points, size_t least_points = 0);

}  // namespace ghostshard::accountant
