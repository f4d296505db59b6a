#include "kernels/linear_norm/tile_plan.h"

namespace ghostshard::kernels {
namespace {

using device::ceil_div;
using device::rectangle_tiles;
using device::triangle_tiles;

constexpr int64_t kStepDepth = 32;

int64_t parts_of(int64_t side) { return side / device::kTile * (side / device::kTile); }

template <typename TilesOf>
std::vector<int64_t> tiles_before(const Segments& segments, const TilesOf& tiles_of) {
  std::vector<int64_t> before{0};
  before.reserve(static_cast<size_t>(segments.units()) + 1);
  for (int64_t u = 0; u < segments.units(); ++u) before.push_back(before.back() + tiles_of(segments.length(u)));
  return before;
}

// A step of either way keeps the same arithmetic units busy, and the Gram matrices' sums over a tile's entries are few
// compared with its steps. If both ways take equally long, the gradient is preferred: its rows are read contiguously,
// and nothing has to be recomputed.
bool gradient_is_sooner(const LinearShape& shape, int64_t rows, int64_t gram_step, const TileSides& sides) {
  return rows > 0 && gradient_steps(shape, rows, sides.gradient) <= gram_step * gram_steps(shape, rows, sides.gram);
}

}  // namespace

std::vector<int64_t> gram_tiles_before(const Segments& segments, int64_t side) {
  return tiles_before(segments, [&](int64_t rows) { return triangle_tiles(rows, side); });
}

std::vector<int64_t> gradient_tiles_before(const LinearShape& shape, const Segments& segments, int64_t side) {
  return tiles_before(segments, [&](int64_t) { return rectangle_tiles(shape.outputs, shape.inputs, side); });
}

std::vector<int64_t> pair_tiles_before(const Segments& rows, const Segments& columns) {
  std::vector<int64_t> before{0};
  for (int64_t u = 0; u < rows.units(); ++u) {
    before.push_back(before.back() + rectangle_tiles(rows.length(u), columns.length(u)));
  }
  return before;
}

PassingTiles passing_tiles_before(const LinearShape& shape, const Segments& segments, int64_t gram_step,
                                  const TileSides& sides) {
  const auto by_gradient = [&](int64_t rows) { return gradient_is_sooner(shape, rows, gram_step, sides); };
  const auto of_gram = [&](int64_t rows) { return triangle_tiles(rows, sides.gram); };
  const int64_t of_gradient = rectangle_tiles(shape.outputs, shape.inputs, sides.gradient);
  return {.gram = tiles_before(segments, [&](int64_t rows) { return by_gradient(rows) ? 0 : of_gram(rows); }),
          .gradient = tiles_before(segments, [&](int64_t rows) { return by_gradient(rows) ? of_gradient : 0; })};
}

int64_t gram_steps(const LinearShape& shape, int64_t rows, int64_t side) {
  const int64_t depth = ceil_div(shape.inputs, kStepDepth) + ceil_div(shape.outputs, kStepDepth);
  return parts_of(side) * triangle_tiles(rows, side) * depth;
}

int64_t gradient_steps(const LinearShape& shape, int64_t rows, int64_t side) {
  return parts_of(side) * rectangle_tiles(shape.outputs, shape.inputs, side) * ceil_div(rows, kStepDepth);
}

}  // namespace ghostshard::kernels
