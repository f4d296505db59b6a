// Adaptive clipping: the clip norm follows a quantile of the units' gradient norms (Andrew et al. 2021,
// arXiv:1905.03871, Alg. 1 and Thm. 1).
//
// Beside its clipped sum, a step with the clip norm C releases one more number of the same batch,
//
//   count = Σ_u s_u + N(0, σ_b²),     s_u = +1/2 if unit u's norm is at most C, −1/2 if it is larger or not finite,
//                                           0 if the unit has no gradient.
//
// share = 1/2 + count/B, with the fixed B, estimates the share of units below C, and the next step's clip norm is
// C·exp(−η·(share − γ)), kept between public limits: post-processing. The true batch size divides nothing.
//
// A unit moves the sum by at most C and the count by at most 1/2, so the pair, each in standard deviations of its
// noise, by at most (σ_g⁻² + (2σ_b)⁻²)^(1/2): a Poisson-sampled Gaussian of noise multiplier σ if σ_g = (σ⁻² −
// (2σ_b)⁻²)^(−1/2) (accountant::AdaptiveClippingEvent). A record without a loss stands where zero-out takes one away;
// it adds 0 and not 1/2, otherwise the two would lie 1 apart.
#pragma once

#include <ATen/ATen.h>

#include <nlohmann/json_fwd.hpp>

#include "accountant/types.h"
#include "kernels/gaussian.h"

namespace ghostshard::dp {

struct ClipQuantile {
  double target = 0.5;                           // γ: the share of units whose norm is to be at most the clip norm
  double rate = 0.2;                             // η
  accountant::NoiseMultiplier count_noise{1.0};  // σ_b, in units
  accountant::ClipNorm least{1.0}, most{1.0};    // public limits of the clip norm

  // The paper's numbers: σ_b = B/20, and limits a thousand times away from the clip norm to start with.
  static ClipQuantile around(accountant::ClipNorm start, double expected_batch);
  // Throws std::invalid_argument: the rule and the value. start: the first step's clip norm.
  void check(accountant::ClipNorm start) const;
  // σ_g, rounded up, for a step that is to cost as much as one release with this noise multiplier. Throws
  // std::invalid_argument unless 2σ_b is larger than it.
  accountant::NoiseMultiplier gradient_noise(accountant::NoiseMultiplier whole) const;
  accountant::ClipNorm next(accountant::ClipNorm now, double share) const;
  bool operator==(const ClipQuantile&) const = default;
};
nlohmann::json to_json(const ClipQuantile& quantile);  // for the ledger's header

// Σ_u s_u of a microbatch, float64 [1], from the upper bounds of its units' squared norms [U]. Multiples of 1/2: sums
// of them are exact in any order.
at::Tensor centred_count(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm);

// N(0, σ_b²), rounded to a multiple of 1/2. The count is one too, so the noised count is that of the real-valued
// mechanism, rounded, and its digits do not tell which of the generator's numbers was drawn.
double count_noise(const kernels::ChaChaKey& key, accountant::NoiseMultiplier sigma);

}  // namespace ghostshard::dp
