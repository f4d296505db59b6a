// Noise that takes back a part of all noise before it, with d buffers of memory: the inverse of a buffered linear
// Toeplitz matrix (BLT, arXiv:2404.16706; for multi-participation arXiv:2408.08868, Alg. 3).
//
// With outputs ω_j, decays θ_j, j = 1 … d, and fresh noise z_t ~ N(0, (s·sigma·C)²·I), step t's noise is
//
//   x_t = z_t − Σ_j ω_j·S_j,      and then S_j ← θ_j·S_j + x_t,      S_j = 0 where a chain begins.
//
// So x_t + Σ_{i>=1} c_i·x_{t−i} = z_t with c_i = Σ_j ω_j·θ_j^(i−1). What a unit that takes part in every b-th step
// moves in these sums, s, and what each step is charged is in accountant/blt_rows.h; docs/guarantee.md, "Noise from
// buffers", has the proof. Nothing is amplified by sampling: the units are dealt to b = ⌈n/B⌉ groups by their places,
// and step t takes the whole of group t mod b.
//
// A chain is that of dp/mechanism/noise_bands.h: consecutive steps, each released once. A step that is repeated, or
// left out, begins a new one.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "accountant/blt_rows.h"
#include "fsdp/reduce_scatter.h"

namespace ghostshard::dp {

struct NoiseBlt {
  std::vector<float> outputs = {}, decays = {};  // ω and θ; empty: the noise of each step is independent
  int64_t separation = 1;                        // b
  int64_t steps = 1;                             // T, for which s is the norm

  bool is_on() const { return !outputs.empty(); }
  // Throws std::invalid_argument as accountant::BltRows does, or if noise is independent.
  accountant::BltRows rows() const;
  // Of x_t's elements in a chain's step number `steps` (from 1), in units of (sigma·C)²: s²·Σ_{i<steps} h_i², where h
  // is the inverse of (1, c_1, c_2, …) as a series. 1 if noise is independent.
  double variance() const;
  // Throws std::invalid_argument unless noise is independent or there are rows.
  void check() const;
  bool operator==(const NoiseBlt&) const = default;
};

// The buffers S of a chain, as far as this rank owns them: float32 [shard_size] for each trainable group and buffer, on
// the model's device or in host memory.
class NoiseBuffers {
 public:
  NoiseBuffers(const fsdp::GroupedParameters& model, const NoiseBlt& blt, bool on_host = false);

  // Before a step's first correlate(). follows: the step belongs to the chain of the step before; otherwise it begins
  // one.
  void begin_step(bool follows) { empty_ = !follows; }
  // noise: this rank's slice of the group, with z_t; x_t afterwards. Once for each step and group. Every element is
  // computed by itself, by single float32 operations in the order of j: the same bits on every mesh and device.
  void correlate(const fsdp::FlatGroup& group, const at::Tensor& noise);

 private:
  NoiseBlt blt_;
  bool on_host_;
  std::vector<fsdp::ShardBuffers> buffers_;
  bool empty_ = true;
};

}  // namespace ghostshard::dp
