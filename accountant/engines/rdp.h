// Rényi differential privacy of the Poisson-sampled Gaussian (Mironov, Talwar, Zhang 2019, arXiv:1908.10530), over
// continuous orders.
//
// Opacus' list of orders starts at 1.1 and ends at 63, which costs up to a factor of ten at small and at large epsilon.
// Its sums in log space lose a log A below 1e-15; at q = 1e-7 the result can be too small. Here
//   A(alpha) - 1 = E_Q[(1+t)^p - 1 - p·t],  t = q·(e^u - 1),  u = (2x - 1)/(2 sigma²),  x ~ Q = N(0, sigma²)
// with p = alpha for removing a unit and p = 1 - alpha for adding one. E_Q[t] = 0, so subtracting p·t changes nothing
// and makes the integrand >= 0 (Bernoulli): nothing cancels between nodes, and A - 1 = 1e-20 is resolved.
//
// A is certified: the integrand is analytic in a strip, which bounds the trapezoid rule's error; that and every
// rounding are added to the answer (gaussian/real_moment.cpp). If the rule would need too many nodes, the closed form
// A <= 1 - q + q·A_Gaussian (convexity of f-divergences) takes its place: always more epsilon.
#pragma once

#include <memory>
#include <vector>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

// (alpha - 1) · RDP(alpha) = log A(alpha), the larger of the two directions, as a function of c = alpha - 1 so that
// orders close to 1 keep their digits. Of an event whose losses are a table: of the finite ones, and RdpAccountant
// takes the probability of the infinite ones off delta. Never below the exact value; +infinity if it exceeds a double.
// Throws std::invalid_argument unless c is finite and > 0, and if RdpAccountant refuses the event.
double rdp_log_moment(const Event& event, double c, Adjacency adjacency = Adjacency::kZeroOut);

// The epsilon that an RDP log-moment (alpha-1)·RDP = k gives at delta, alpha = 1 + c (Canonne, Kamath, Steinke 2020,
// arXiv:2004.00010, Prop. 12). A negative result means that epsilon = 0 holds.
double rdp_to_epsilon(double c, double k, Delta delta);
// The logarithm of the delta that it gives at epsilon, by the same theorem. It may be positive.
double rdp_to_log_delta(double c, double k, Epsilon epsilon);

// log A of one event on a fixed grid of orders, computed when first asked for. Safe to use from several threads.
class RdpCurve;

// upper = estimate = the RDP value. lower = the exact epsilon of a part of the run: one execution of its worst event,
// or all unsampled Gaussian events together (Balle, Wang 2018, arXiv:1805.06530). This lower end is valid, but weak for
// a run of many sampled steps; it is 0 for fixed-size sampling. Effort makes no difference.
class RdpAccountant final : public Accountant {
 public:
  explicit RdpAccountant(Adjacency adjacency) : Accountant(adjacency) {}
  std::unique_ptr<Accountant> clone() const override;
  std::string name() const override { return "rdp"; }
  bool bounds_truncation() const override { return true; }

 private:
  void admit(const Event& event) override;
  EpsilonBound bound_epsilon(Delta delta, Effort effort) const override;
  DeltaBound bound_delta(Epsilon epsilon, Effort effort) const override;
  class Terms;

  std::vector<std::shared_ptr<RdpCurve>> curves_;  // one per charge; depends on the event alone: clones share it
};

// The same charges under Rényi's bound, for engines that have no answer of their own.
RdpAccountant rdp_of(const std::vector<Charge>& charges, Adjacency adjacency);

}  // namespace ghostshard::accountant
