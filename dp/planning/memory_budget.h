// The memory that a rank may take for a step (dp/planning/step_plan.h), and the memory that the machine has for it.
#pragma once

#include <optional>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::dp {

// Given by the user, in bytes or as a multiple of plain_peak_bytes(): a plan keeps within it at any price.
struct MemoryBudget {
  std::optional<double> bytes, times_plain;

  bool given() const { return bytes || times_plain; }

  // "600" (MiB) or "1.05x" (of the same step without privacy); an empty text gives nothing. std::invalid_argument for
  // any other text, and for a number that is not finite and > 0.
  static MemoryBudget parse(const std::string& text);
};

// Bytes of memory that are free for one rank, less a margin: of its device; on a CPU its share of the host's memory,
// or of what the control groups it runs in leave. The least of all ranks; infinite if a device's allocator cannot tell.
// A collective: call it before the model is built, since what a rank has already taken counts as taken.
double memory_room(fsdp::Mesh& mesh);

}  // namespace ghostshard::dp
