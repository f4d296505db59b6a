// What one logical batch is clipped to, noised with and charged as. One object, carried by the clipped sum from the
// clipper that bounded it to the mechanism that noises it, so that the three cannot differ: "clipped to one norm,
// noised for another" cannot be written.
#pragma once

#include <cstdint>
#include <optional>

#include "accountant/events.h"
#include "accountant/types.h"

namespace ghostshard::dp {

struct StepTerms {
  accountant::ClipNorm clip_norm{1.0};
  // Of the noise per coordinate, in units of clip_norm. None: no noise and no privacy, nothing is charged.
  std::optional<accountant::NoiseMultiplier> noise_multiplier;
  std::optional<accountant::Event> event;  // what it costs; there exactly where noise_multiplier is
};

// Ties clippers, sums and mechanisms to the plan that made them; another one on every call.
uint64_t next_plan_identity();

}  // namespace ghostshard::dp
