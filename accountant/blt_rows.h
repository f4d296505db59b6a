// What the steps of a run with noise of a buffered linear Toeplitz matrix cost (BLT, arXiv:2408.08868), each unit
// taking part in every b-th step, whoever knows in which ones (no amplification by sampling).
//
// A *chain* is a sequence of consecutive steps; its row r = 0, 1, … is its step number r. With outputs ω_j >= 0 and
// decays 0 <= θ_j < 1 let c_0 = 1 and c_i = Σ_j ω_j·θ_j^(i−1). From the chain's releases everybody can compute
// w_r = Σ_i c_i·(release of row r − i), which has fresh noise of deviation s·sigma·C. A unit that takes part in the
// rows p, p + b, p + 2b, … with p < b moves w_r by at most C·ρ_{r−p}, where
//
//   ρ_r = Σ_{k>=0, k·b<=r} c_{r−k·b}      (0 before row 0):
//
// contributions of norm at most C, with coefficients that are not negative, are longest if they all point one way.
// Rows 0 … R−1 together are then one Gaussian whose squared ratio of shift and deviation is at most
// Σ_{r<R−p} ρ_r²/(s·sigma)², largest for p = 0 (min-separation sensitivity, arXiv:2405.13763; the shifts may follow
// from what was released before: docs/guarantee.md, "Noise from buffers"). So row r is charged as a Gaussian of noise
// multiplier sigma·s/ρ_r: any number of rows add up to what they cost together. Another chain has rows of its own.
//
// s is the norm of (ρ_0, …, ρ_{T−1}): a whole run of T steps is a Gaussian of noise multiplier sigma.
//
// Numbers: ω and θ are taken as they are (floats, exact in double). ρ_r is rounded up and the noise multiplier down.
// s only sets a scale, for the noise as for the charge.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accountant/ledger.h"
#include "accountant/types.h"

namespace ghostshard::accountant {

class BltRows {
 public:
  static constexpr int64_t kMostSteps = 100'000;  // as many rows, each a charge of its own
  static constexpr size_t kMostBuffers = 16;

  // Throws std::invalid_argument with the rule and the value, unless 1 <= separation, 1 <= steps <= kMostSteps, there
  // are from 1 to kMostBuffers outputs and as many decays, 0 <= output <= 1 and 0 <= decay < 1.
  BltRows(const std::vector<double>& outputs, const std::vector<double>& decays, int64_t separation, int64_t steps);

  int64_t steps() const { return static_cast<int64_t>(rows_.size()); }
  // ρ_r, rounded up; std::out_of_range unless 0 <= row < steps().
  double row(int64_t row) const { return rows_.at(static_cast<size_t>(row)); }
  double norm() const { return norm_; }  // s, to the digits of a double
  // sigma·s/ρ_r, rounded down.
  NoiseMultiplier charged(int64_t row, NoiseMultiplier sigma) const;

 private:
  std::vector<double> rows_;
  double norm_ = 0;
};

// A ledger's header: "noise_blt": {"outputs": [ω], "decays": [θ], "separation": b}, with "planned_steps" and
// "noise_multiplier". Nothing without noise_blt; std::invalid_argument if it makes no rows.
struct BltPlan {
  BltRows rows;
  NoiseMultiplier sigma;
};
std::optional<BltPlan> blt_plan(const nlohmann::json& header);

// The row of each release in the ledger, in order: the row after that of the line before, if its step is the next one
// and no epoch begins between; otherwise, or if what it is charged is row 0's price, row 0. std::invalid_argument
// naming the line if it is charged neither price. A chain is at most as long as the plan's steps.
std::vector<int64_t> blt_rows_of(const LedgerContents& ledger, const BltPlan& plan);

}  // namespace ghostshard::accountant
