#include "accountant/grid.h"
namespace ghostshard::accountant {
std::optional<DirectionBound> grid_epsilon(Direction, const std::vector<ComposedRelease>&, Delta) { return std::nullopt; }
std::optional<DirectionBound> grid_delta(Direction, const std::vector<ComposedRelease>&, double) { return std::nullopt; }
}
