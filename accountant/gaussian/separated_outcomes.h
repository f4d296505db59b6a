// Delta in closed form where noise is so little that an outcome tells whether the unit was drawn. A unit is removed.
//
// Of one release let P = (1-q)·N(0, sigma²) + q·N(1, sigma²), Q = N(0, sigma²), u = (2x - 1)/(2 sigma²), the loss
// L = log(1 - q + q·e^u). Under P let S be the executions in which the unit is drawn, and
//   L' = Σ_{not in S} log(1-q) + Σ_{in S} (log q + u).
//   Lower end. L >= L' whatever S is, and delta(eps) = E_P[(1 - e^(eps - L))+] grows with L. So
//     delta(eps) >= D(eps) = E[(1 - e^(eps - L'))+].
//   Upper end. For any threshold tau split Q of each execution into what lies at or below it and what lies above. Of an
//     outcome let R be the executions above tau. With P = Σ_S P_S and Q = Σ_R Q_R over all sets, P_S(all) the
//     probability of S, delta(eps) = ∫ (P - e^eps·Q)+ <= Σ_S ∫ (P_S - e^eps·Q_S)+. Where Q_S > 0, its outcomes are on
//     their sides of tau and log(P_S/Q_S) = L'; elsewhere P_S counts whole:
//     delta(eps) <= D(eps) + Pr[some outcome is on the wrong side]
//                <= D(eps) + Σ ((1-q)·Pr[N(0, sigma²) > tau] + q·Pr[N(1, sigma²) <= tau]).
// Under S with k_j of the T_j executions of phase j, L' is normal with the variance V = Σ k_j/sigma_j² and the mean
// V/2 + s, s = Σ (k_j·log q_j + (T_j - k_j)·log(1 - q_j)), so that D is a sum over binomial k_j of
//   Pr[N > z] - e^(eps - s)·Pr[N > z + sqrt(V)],  z = (eps - s - V/2)/sqrt(V),  N standard normal.
// An unsampled Gaussian is always drawn, whatever its noise.
#pragma once

#include <optional>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/direction_bound.h"

namespace ghostshard::accountant {

class SeparatedOutcomes {
 public:
  // Nothing if outcomes on the wrong side may matter beside this delta, if the k_j are too many, or if a phase is a
  // mixture, a table or is not executed a whole number of times.
  static std::optional<SeparatedOutcomes> make(const std::vector<ComposedRelease>& phases, Delta delta);

  struct Value {
    double delta, slope;  // D, and its derivative by epsilon
    double lower, upper;  // the truth lies inside
  };
  Value at(double epsilon) const;  // epsilon >= 0

  // About the mean and the standard deviation of all losses.
  double mean() const { return mean_; }
  double deviation() const { return deviation_; }

 private:
  struct Term {
    long double shift, variance;  // s, V
    double size;                  // sum of the moduli of what s is the sum of
    double weight;
  };
  SeparatedOutcomes() = default;
  bool add_sampled(const ComposedRelease& phase, double cut);

  std::vector<Term> terms_;
  double phases_ = 0;
  double misplaced_ = 0;   // probability of an outcome on the wrong side
  double left_out_ = 0;    // of k_j that are no terms
  double of_weights_ = 0;  // relative error of the weights
  double mean_ = 0, deviation_ = 0;
};

// The epsilon at this delta, if it has a closed form: of one execution (single_release.h), or of separated outcomes.
std::optional<DirectionBound> closed_form_epsilon(Direction direction, const std::vector<ComposedRelease>& phases,
                                                  Delta delta);

}  // namespace ghostshard::accountant
