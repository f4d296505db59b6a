#pragma once

#include <optional>
#include <vector>

#include "accountant/contour_moments.h"
#include "accountant/direction_bound.h"

namespace ghostshard::accountant {

std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta);
std::optional<DirectionBound> grid_delta(Direction direction, const std::vector<ComposedRelease>& phases, double epsilon);

}  // namespace ghostshard::accountant
