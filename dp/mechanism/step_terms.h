// The clip norm, the noise and the charge of one logical batch. The clipped sum carries this one object from the
// clipper that bounded it to the mechanism that noises it, so the three cannot differ: "clipped to one norm, noised for
// another" cannot be written.
#pragma once

#include <cstdint>
#include <optional>

#include "accountant/events.h"
#include "accountant/types.h"
#include "dp/mechanism/bins.h"

namespace ghostshard::dp {

struct StepTerms {
  accountant::ClipNorm clip_norm{1.0};
  // The noise per coordinate, as a multiple of clip_norm. None: no noise and no privacy, nothing is charged.
  std::optional<accountant::NoiseMultiplier> noise_multiplier;
  // If the clip norm adapts (dp/mechanism/clip_quantile.h): the deviation of the noise of the count of units below it.
  std::optional<accountant::NoiseMultiplier> count_noise;
  // With balls-in-bins sampling: which steps make up a release. The first of them is charged with all.
  std::optional<BinPasses> passes = {};
  bool passes_are_drawn = false;           // by a sampler: they begin where they begin
  std::optional<accountant::Event> event;  // the cost of all of this; there exactly if noise_multiplier is
};

// Ties clippers, sums and mechanisms to the plan that made them; another one on every call.
uint64_t next_plan_identity();

}  // namespace ghostshard::dp
