// The moments of all phases on one line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "accountant/contour/phase_moment.h"

namespace ghostshard::accountant {

struct LineMoments {
  std::vector<PhaseMoment> each;
  long double log_scale = 0;  // log M(c) of all executions, as the moments are divided by it
  size_t nodes = 0;           // of all meshes, 1 at least
};
// How many nodes their meshes would have, before they are made.
int64_t mesh_nodes(Direction direction, std::span<const ComposedRelease> phases, double c);
// nodes: mesh_nodes(…, c). Nothing if they would take more memory than a line may.
std::optional<LineMoments> moments_on_line(Direction direction, std::span<const ComposedRelease> phases, double c,
                                           int64_t nodes);

// The moments alone, in the phases' order. nodes: of all meshes, about.
std::vector<PhaseMoment> each_moment(Direction direction, std::span<const ComposedRelease> phases, double c,
                                     bool precise, int64_t nodes);

}  // namespace ghostshard::accountant
