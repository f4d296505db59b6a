// The losses of mechanisms beside the Gaussian, as cells. Each stands for the pair that dominates the mechanism; the
// derivation is beside the code. Errors are bounds on the rounding of each number.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "accountant/events.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// Noise of density e^(-|x|/scale)/(2·scale), moved by 1.
LossCells laplace_losses(double scale);
// Noise of probability tanh(a/2)·e^(-a|x|) on the integers, moved by `shift`.
LossCells discrete_laplace_losses(double a, int64_t shift);
// Noise of probability ∝ e^(-x²/(2·deviation²)) on the integers, moved by `shift`. Throws std::invalid_argument for a
// deviation or a shift above 1e6.
LossCells discrete_gaussian_losses(double deviation, int64_t shift);
// epsilon-bounded range.
LossCells bounded_range_losses(double epsilon);
LossCells epsilon_delta_losses(double epsilon, double delta);
// (xi, rho)-zCDP, by the best conversion at each loss: sound, and looser than Rényi accounting of many such releases.
LossCells zcdp_losses(double rho, double xi);
// Any mechanism of which log delta is at most log_delta(loss) at each loss >= 0, in both directions.
LossCells losses_below(const std::function<double(double loss)>& log_delta);
LossCells table_losses(const LossTableEvent& table);

// Σ weight_i·N(at_i, sigma²): one neighbour's side of a pair.
struct NormalMixture {
  std::vector<double> weights, at;
  std::vector<double> errors{};  // of the weights, absolute; none if they are what they are
};
// P against Q, if log(P/Q) grows with the outcome: every mean of P is >= 0 and every mean of Q is <= 0.
LossCells normal_mixture_losses(const NormalMixture& p, const NormalMixture& q, double sigma);
// Gaussian of noise multiplier sigma on `batch` of `units` units drawn without replacement, if a unit is replaced.
LossCells without_replacement_losses(double rate, double sigma);

}  // namespace ghostshard::accountant
