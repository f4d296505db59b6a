// delta(epsilon) of composed releases as an integral along a vertical line, with a proven error.
//
// Alghamdi et al. 2023 (arXiv:2208.09595, Thm. 3.1): with M the product of all moment generating functions, c > 0,
//   delta(eps) = 1/(2 pi i) ∫_{c-i∞}^{c+i∞} M(z)·e^(-z·eps)/(z(z+1)) dz.
// e^(c·eps)·delta(eps) is the inverse Fourier transform of M(c+it)/((c+it)(c+1+it)), so by Poisson's summation formula
// the trapezoid rule with step 2 pi/P is *exactly*
//   sum over all k of e^(c·k·P)·delta(eps + k·P),
// every term of which is >= 0. So the rule never falls below the truth, and exceeds it by at most
//   Σ_{k>=1} [e^(-(c'-c)kP)·κ(c')·e^(K(c')-c'·eps) + e^(-ckP)],  K = log M, any c' > c,
// by Chernoff (chernoff.h), delta(eps) <= κ(c)·e^(K(c)-c·eps), κ(c) = c^c/(1+c)^(1+c), and delta <= 1. Where no loss is
// as small as eps - P, delta(eps - kP) = 1 - e^(eps - kP) exactly, so that the alias to the left is known,
//   Σ_{k>=1} e^(-ckP)·(1 - e^(eps - kP)) = 1/(e^(cP) - 1) - e^eps/(e^((c+1)P) - 1),
// and is taken off: a period may then be short where a unit is hardly ever drawn. The error of
// each M(c+it) and the nodes beyond the last remain; contour_moments.h bounds both.
#pragma once

#include <complex>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <span>
#include <vector>

#include "accountant/contour/large_losses.h"
#include "accountant/contour/phase_moment.h"
#include "accountant/contour/sigma_rule.h"
#include "accountant/contour/small_losses.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {

// The line to integrate along: the intercept c whose period P is the shortest with an alias of e^-wanted_digits of
// delta. intercept: c as a share of the saddle point; 0 to choose. left_known_from: periods from which on the alias to
// the left is known.
struct LineChoice {
  double c = 0;
  double period = 0;
  int64_t told = 0;     // aliases to the right that few_losses.h bounds, before Chernoff bounds the others
  double variance = 0;  // of all losses, tilted by about c; 0 if it is not known
  double k = 0;         // K(c), about, if the variance is known
  std::vector<std::pair<double, double>> beyond;  // (c', K(c') rounded up) with c' > c
};
std::optional<LineChoice> choose_line(Direction direction, std::span<const ComposedRelease> phases, double saddle,
                                      double epsilon, double log_delta, double intercept, double wanted_digits,
                                      const SigmaRule* rule = nullptr,
                                      double left_known_from = std::numeric_limits<double>::infinity());

class ContourLine {
 public:
  // A line for epsilons near `epsilon`, where delta is about e^log_delta: the alias and the nodes beyond the last are
  // e^-wanted_digits of that. intercept: c as a share of the saddle point; 0: the share with the shortest period, hence
  // the fewest nodes. Nothing if more than `budget` evaluations of an integrand would be needed. rule: of which these
  // are the phases. cut: the line is that of large losses alone (large_losses.h), and what small ones add is bounded.
  // below_zero: no loss of all together is below minus this, so that the alias to the left is known; a unit is
  // removed, and the phases are pairs.
  static std::optional<ContourLine> make(Direction direction, std::span<const ComposedRelease> phases, double saddle,
                                         double epsilon, double log_delta, double intercept, int64_t budget,
                                         double wanted_digits = 32, const SigmaRule* rule = nullptr,
                                         const LossCut* cut = nullptr,
                                         double below_zero = std::numeric_limits<double>::infinity());

  // Where make's line would lie and end, without its integrand.
  struct Extent {
    double intercept, end;
    double log_excess;  // of the integrand over the integral
    size_t nodes;
  };
  static std::optional<Extent> extent(Direction direction, std::span<const ComposedRelease> phases, double saddle,
                                      double epsilon, double log_delta, int64_t budget, double wanted_digits);

  struct Value {
    double delta;       // the trapezoid rule's
    double derivative;  // of delta by epsilon
    Bracket bracket;    // the truth lies inside
  };
  Value at(double epsilon) const;

  double intercept() const { return c_; }
  double period() const { return period_; }
  size_t nodes() const { return integrand_.size(); }

 private:
  ContourLine() = default;
  struct Begun;  // all but the integrand
  static std::optional<Begun> begin(Direction direction, std::span<const ComposedRelease> phases, double saddle,
                                    double epsilon, double log_delta, double intercept, int64_t budget,
                                    double wanted_digits, const SigmaRule* rule, const LossCut* cut, double below_zero);
  void take_integrand(std::span<const PhaseMoment> moments, size_t n, const SigmaRule* rule);
  void take_large(std::span<const PhaseMoment> moments, std::span<const LargeLosses> large, size_t n);
  // e^log_power/(z(z+1)) at node k.
  std::complex<long double> over_z(std::complex<long double> log_power, size_t k) const;
  template <class Real>
  Value evaluate(double epsilon) const;
  struct Left {
    double sum = 0, slope = 0, error = 0;
  };
  Left left_alias(double epsilon) const;  // all 0 if it is not known
  double right_alias(double epsilon) const;
  double told_aliases(double epsilon) const;
  template <class Real>
  Real step() const {
    return 2 * std::numbers::pi_v<Real> / static_cast<Real>(period_);
  }
  double c_ = 0, period_ = 0;
  long double log_scale_ = 0;
  size_t phases_ = 0;
  double log_excess_ = 0;  // of the integrand at its start over the integral
  bool precise_ = false;   // the integrand is much larger than the integral: it is kept in long double
  std::vector<std::complex<long double>> integrand_;  // M(c+it)/M(c)/(z(z+1)) at t = 0, 2 pi/P, …
  std::vector<double> error_;                         // of each, absolute
  double rest_ = 0;                                   // sum of the moduli beyond the last node
  std::vector<std::pair<double, double>> chernoff_;   // (c', K(c') rounded up) with c' > c
  std::optional<LossCut> cut_;
  std::vector<ComposedRelease> told_phases_;  // of which few_losses.h bounds so many aliases
  int64_t told_ = 0;
  mutable double told_from_ = std::numeric_limits<double>::infinity(), told_sum_ = 0;
  double below_zero_ = std::numeric_limits<double>::infinity();
};

}  // namespace ghostshard::accountant
