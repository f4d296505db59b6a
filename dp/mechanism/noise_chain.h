// Noise of which each step takes back a part of the step's before, drawn again from the key: no bytes of memory. In
// chains of b steps the inverse of the mixing matrix has one band, and its columns are normalised (lambda-CGD,
// arXiv:2601.22334; banded inverses, arXiv:2505.12128).
//
// With a decay 0 < λ ≤ 1, fresh noise z_t ~ N(0, (sigma·C)²·I), p = t mod b the place of step t in its chain, and
// s_p² = Σ_{i<b−p} λ^{2i}, step t's noise is
//
//   x_t = s_p·(z_t − λ·z_{t−1}),      and s_p·z_t where p = 0, or where a step begins a chain.
//
// So with i counting back to the chain's first step, Σ_i λ^i·x_{t−i}/s_{p−i} = z_t: one unit's clipped gradient of step
// t stands in the chain's rows from t on, at most b − p, times (1, λ, λ², …)/s_p, a vector of norm at most C, under
// noise of sigma·C. That is the Gaussian of noise multiplier sigma, as with noise bands (dp/mechanism/noise_bands.h)
// and under the same sampling: a group of units comes once in b consecutive steps, and chains have no noise in common.
// docs/guarantee.md, "Noise that is drawn again", has the proof.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dp/mechanism/noise_bands.h"
#include "dp/mechanism/noise_blt.h"

namespace ghostshard::dp {

struct NoiseChain {
  int64_t steps = 1;  // b; 1: the noise of each step is independent
  float decay = 0;    // λ; 0 if b is 1

  // Whether a step may take back the noise of the very next before it.
  bool goes_on_at(int64_t step) const { return step % steps != 0; }
  double norm(int64_t step) const;  // s_p, rounded up; step >= 0
  // λ·scale, rounded down: what is taken back of noise of deviation s_p·sigma·C makes no column longer than C.
  float taken_back(float scale) const;
  // Of x_t's elements on average over a chain, in units of (sigma·C)².
  double variance() const;
  // Throws std::invalid_argument unless 1 ≤ b ≤ 10^6, and 0 < λ ≤ 1, or b = 1 and λ = 0.
  void check() const;
  bool operator==(const NoiseChain&) const = default;
};

// How the noise of different steps hangs together: by bands, by chains, by buffers, or not at all.
struct NoiseCorrelation {
  NoiseBands bands = {};
  NoiseChain chain = {};
  NoiseBlt blt = {};
  bool on_host = false;  // what bands and buffers keep lies in host memory; no bit of the noise depends on it

  // b, into which units are dealt for Poisson samples of one group: 1 with white noise and with buffers.
  int64_t groups() const { return std::max(bands.count(), chain.steps); }
  // Throws std::invalid_argument: what any of them refuses, and two at once.
  void check() const;
};

}  // namespace ghostshard::dp
