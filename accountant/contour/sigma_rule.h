// Many releases, of one rate or of many, as a few, with an error that is proven: what a schedule needs.
//
// Let v = 1/sigma². Under Q the log odds u = (2x - 1)/(2 sigma²) have the density
//   k_v(u) = (2 pi v)^(-1/2)·exp(-u²/(2v) - u/2 - v/8),  and  M(z; v) = ∫ k_v(u)·w(u)^p du,  w(u) = 1 - q + q·e^u,
// p = 1 + z if a unit is removed, -z if one is added: v stands in k alone. So M is analytic in v wherever
// Re(1/v) > 0. With v = |v|·e^(i·theta) and v' = |v|/cos(theta), |k_v| is at most
//   C·k_v',  C = cos(theta)^(-1/2)·exp(|v|·sin²(theta)/(8·cos(theta))).
// As ∫ k_v = ∫ k_v·w = 1, M - 1 is the integral of w^p - 1 - p(w - 1) = p(p-1)·∫_1^w (w - s)·s^(p-2) ds, whose modulus
// is at most κ = |z(z+1)|/(c(c+1)) times its value at z = c, c = Re z, for either p. So
//   |M(z; v) - 1| <= C·κ·(M(c; v') - 1) =: β,
// which rises with v' (more noise is post-processing). Where β < 1, log M is analytic and at most -log(1 - β). Far out
// on a line κ is large, and excess_bound.h has a β that is not.
//
// Releases whose log v lies in a *cell* of half width W are put together under a Gauss rule: few sigmas, with counts
// that are no whole numbers, which give the same sum of any polynomial in log v of degree 2K - 1. Let x in [-1, 1] be
// the place in the cell. If log M is at most S on the ellipse with foci ±1 whose half axes add up to ρ, its Chebyshev
// coefficients are at most 2S·ρ^-m (Trefethen 2013, Approximation Theory and Approximation Practice, Thm. 8.1). So the
// sums of log M over the releases and over the rule differ by at most
//   S·(miss_0 + Σ_m 2ρ^-m·miss_m + 4n·ρ^-(degree+1)/(1 - 1/ρ)),
// n executions, miss_m as measured (gauss_rule.h): nothing need be known of the rule but its numbers. On the ellipse
// |log v| exceeds its middle by W·(ρ + 1/ρ)/2 at most, theta is at most W·(ρ - 1/ρ)/2.
//
// The rest of the line. B(T; v) of contour_moments.h with the shift y = theta·sigma² is e^(theta²·sigma²/2)·∫ k_v·G,
// where G does not depend on v and is at most w^(1+c), or w^-c·cos(theta/2)^-c. So ∫ k_v·G is analytic too, at most
// C·M(c; v') or that times cos(theta/2)^-c, the rule gives its sum, and by Jensen's inequality
//   Σ log B(T; v) <= theta²/2·Σ sigma² + n·log(Σ ∫ k_v·G/n).
//
// *Rates of their own.* A cell of releases whose rates differ too is a rectangle of log v and log q. Its rule is some
// of the releases with other counts (pair_rule.h), which give the same sums of some products T_m·T_n of both places. M
// is analytic in q as well, |M - 1| <= β of excess_bound.h on the product of two ellipses, and the coefficient of
// T_m·T_n is at most 4S·ρ^-m·ρ'^-n (2S if m or n is 0). Those of the other products add up, and |T_m·T_n| <= 1. Of the
// rest of the line, G = (w·w*)^((1+c)/2)·(w/w*)^(iT/2) with w = 1 - q + q·e^(u + i·theta) and w* = 1 - q + q·e^(u -
// i·theta), or with -c instead of 1 + c, is analytic in q: on the path of excess_bound.h both have a positive real part
// if theta + phi < pi/2. There w and w* have the same real part and w the larger imaginary one, so the second factor is
// at most 1, and |w|, |w*| lie between 1 - |q| and
//   1 - |q| + |q|·phi + |q|·T·y <= max(1 + |q|·phi/(1 - |q|), T)·(1 - |q| + |q|·y).
// So |∫ k_v·G| <= C·max(…)^(1+c)·M(c; v', |q|), or C·(1 - |q|)^-c.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "accountant/contour/excess_bound.h"
#include "accountant/contour/pair_rule.h"
#include "accountant/contour/phase_moment.h"
#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

class SigmaRule {
 public:
  // For lines near the intercept c. scale: their t at the end, about. Phases in the order of
  // composed_releases: by rate, then by sigma; no mixtures and no tables. Nothing if no rule is good enough.
  // finer: what they may miss is so many times less than usual.
  static std::optional<SigmaRule> make(Direction direction, std::span<const ComposedRelease> all, double c,
                                       double scale, double finer = 1);

  const std::vector<ComposedRelease>& phases() const { return phases_; }

  bool has_rates() const {  // of their own
    return std::any_of(cells_.begin(), cells_.end(), [](const Cell& cell) { return cell.pair; });
  }

  // A bound on |Σ log M(c + it)| of all releases less that of phases(). Infinite from somewhere on.
  double log_error(double c, double t) const;
  // The t up to which log_error is finite.
  double reach(double c) const;
  // The t at the end of a line that leaves out so many digits (contour_line.h), about.
  double end_near(double digits) const { return digits < 30 ? scale_ : 1.3 * scale_; }
  // An upper bound on log |M(c + it')| of all releases, less log M(c) of phases(), for all t' >= t. moments: those of
  // phases(), at the same c.
  double log_rest(std::span<PhaseMoment> moments, double c, double t) const;
  // Gives the moments of each cell the same angles: once, before log_rest.
  void align(std::span<PhaseMoment> moments) const;

 private:
  static constexpr size_t kEllipses = 4;
  static constexpr double kMostExcess = 0.9;    // β, beyond which nothing is said
  static constexpr double kEasyExcess = 0.5;    // β, below which it need not be less
  static constexpr double kPastEnd = 1.1;       // what a rule is made for, beside the end of a line: level 0
  static constexpr double kTolerance = 3e-11;   // of the logarithm of all moments together
  static double ratio_of(double c, double t) {  // κ
    return std::hypot(c, t) * std::hypot(1 + c, t) / (c * (1 + c));
  }
  static double half_axes(double width, double angle) {  // ρ: the half axis across is angle/width
    const double across = angle / width;
    return across + std::sqrt(1 + across * across);
  }
  struct Ellipse {
    double most_v;   // v'
    double growth;   // C
    double missing;  // what stands after S in the bound
    ComplexReleases releases;
  };
  struct Cell {
    size_t first, size;  // of phases()
    bool exact = true;   // the releases themselves
    bool pair = false;   // the rates differ
    double q = 1, executions = 0, variances = 0, miss = 0;
    std::array<Ellipse, kEllipses> ellipses{};
  };
  struct Wanted {
    double c, share;  // tolerance for each execution
    double end;
  };
  struct Choice {
    size_t size, nodes;
    double width;
  };
  using Moments = std::vector<std::array<double, kEllipses>>;
  struct Box {  // of places: log v and log q
    double middle_v, half_v, middle_q, half_q;
  };
  struct PairCell {
    std::vector<ComposedRelease> releases;
    std::optional<Degrees> degrees;  // nothing: the releases themselves
  };
  struct AtIntercept {
    Moments excess;              // C·(M(c; v') - 1) of each cell and ellipse; infinite if rates differ
    Moments rest;                // |∫ k_v·G| is at most this
    std::map<int, Moments> far;  // β up to the t of a level
  };

  explicit SigmaRule(Direction direction) : direction_(direction) {}
  static std::array<Ellipse, kEllipses> ellipses_of(double middle, double width, double q);
  double excess_on(const Ellipse& ellipse, double q, double c) const;
  size_t nodes_for(double middle, double width, double q, const Wanted& wanted) const;
  std::optional<Choice> choose(std::span<const ComposedRelease> alike, const Wanted& wanted) const;
  void take(std::span<const ComposedRelease> alike, const Wanted& wanted);
  void take_exact(std::span<const ComposedRelease> releases);
  void take_cell(std::span<const ComposedRelease> releases, size_t nodes);
  // Of releases whose rates differ: the best division of a rectangle, and its cost in nodes.
  struct Division {
    size_t nodes;
    std::vector<PairCell> cells;
  };
  static std::array<Ellipse, kEllipses> ellipses_of(const Box& box);
  std::optional<Degrees> degrees_for(const Box& box, const Wanted& wanted) const;
  Division divide(std::vector<ComposedRelease> releases, const Wanted& wanted, int depth) const;
  void take_pair_cell(const PairCell& planned);

  AtIntercept& at_intercept(double c) const;
  double rest_on(const Cell& cell, size_t ellipse, double c) const;
  const Moments& far_at(double c, int level) const;  // levels of t, so that few are computed
  int level_of(double t) const;
  double end_of(int level) const;
  // log_bound: of a pair, at this shift.
  template <class LogBound>
  double cell_rest(const Cell& cell, std::span<PhaseMoment> moments, std::span<const double> rest, double c,
                   size_t index, const LogBound& log_bound) const;

  Direction direction_;
  std::vector<ComposedRelease> phases_;
  std::vector<Cell> cells_;
  double scale_ = 0;
  mutable std::map<double, AtIntercept> known_;  // by c
  mutable std::vector<size_t> last_angle_;
};

}  // namespace ghostshard::accountant
