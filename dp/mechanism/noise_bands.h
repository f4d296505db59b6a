// Noise that later steps partly take back: the banded matrix mechanism (arXiv:2306.08153).
//
// With ratios a_1 … a_{b-1} and fresh noise z_t ~ N(0, (s·sigma·C)²·I), s² = 1 + Σ a_k², step t's noise is
//
//   x_t = z_t − Σ_{k=1}^{min(t, b−1)} a_k·x_{t−k},      t counted from the chain's first step.
//
// So x_t + Σ a_k x_{t−k} = z_t: one unit's clipped gradient of step t stands in the rows t … t+b−1 of that, times
// (1, a_1, …, a_{b−1}), a vector of norm at most s·C, under noise of s·sigma·C. That is the Gaussian of noise
// multiplier sigma whatever the ratios are: they decide how useful the noise is, never how private. It holds if a unit
// takes part in steps that are b apart, which the groups of dp/mechanism/sampler.h see to. docs/guarantee.md,
// "Correlated noise", has the proof.
//
// A *chain* is a sequence of consecutive steps, each released once. A step that is repeated, or left out, begins a new
// one: if it took back noise that a lost step has taken back already, the units of the steps before would stand in more
// rows than were charged.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "fsdp/reduce_scatter.h"

namespace ghostshard::dp {

struct NoiseBands {
  std::vector<float> ratios;  // a_1 … a_{b-1}; empty: the noise of each step is independent

  int64_t count() const { return static_cast<int64_t>(ratios.size()) + 1; }  // b
  double norm() const;                                                       // s, rounded up
  // Of x_t's elements in a chain's step number `steps` (from 1), in units of (sigma·C)²: s²·Σ_{i<steps} h_i², where h
  // is the inverse of (1, a_1, …) as a series. It grows with the steps.
  double variance(int64_t steps) const;
  // Throws std::invalid_argument unless every ratio is finite and at most 2 in size, and there are at most 1,023.
  void check() const;
  bool operator==(const NoiseBands&) const = default;
};

// What is kept is x_t itself, in float32. Kept in 8 bits, with steps of h, it would be a function of x that is not
// linear: under the neighbour's sums an element's x is another by Δ, and what is taken back by 0 or h. Over d elements
// that is h·‖Δ‖₁ in the square, by as much as h·√d·C, where the rows above have ‖Δ‖² ≤ C²: no multiple of C that is
// independent of d bounds it, so no charge would hold. Noise that takes less memory is kept on the host, or nowhere
// (dp/mechanism/noise_chain.h).

// Elements at a time: on the CPU they stay in the cache over all bands (or buffers); a device wants few launches.
inline int64_t noise_at_a_time(const at::Tensor& noise) { return int64_t{1} << (noise.is_cpu() ? 15 : 24); }

// factor · kept into `product`, by way of it if what is kept lies in host memory: the same bits either way.
void scaled_noise(const at::Tensor& product, const at::Tensor& kept, float factor, bool on_host);

// The noise of the last b − 1 steps of a chain, as far as this rank owns it: float32 [shard_size] for each trainable
// group and step, on the model's device or in host memory. There a step reads (b − 1) · shard_size floats from it and
// writes shard_size.
class NoiseHistory {
 public:
  NoiseHistory(const fsdp::GroupedParameters& model, const NoiseBands& bands, bool on_host = false);

  // Before a step's first correlate(). follows: the step belongs to the chain of the step before; otherwise it begins
  // one.
  void begin_step(bool follows);
  // noise: this rank's slice of the group, with z_t; x_t afterwards, which is kept. Once for each step and group. Every
  // element is computed by itself, by single float32 operations in a fixed order: the same bits on every mesh and
  // device.
  void correlate(const fsdp::FlatGroup& group, const at::Tensor& noise);

 private:
  const fsdp::ShardBuffers& past(int64_t steps) const;  // 1: of the step before

  NoiseBands bands_;
  bool on_host_;
  std::vector<fsdp::ShardBuffers> kept_;  // b − 1, as a ring: the oldest is overwritten
  int64_t place_ = 0;                     // of the step under way
  int64_t known_ = 0;                     // steps of the chain before the one under way, at most b − 1
};

}  // namespace ghostshard::dp
