// Which tile of which unit a block works on. Pure; host and device compile the same text, so tests on the host cover
// sizes for which no machine has the memory.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/host_device.h"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// Rows and columns of a tile of a product: of plain arithmetic, and of tensor cores. Both operands of a tile pass once
// through the multiprocessor's shared memory, so twice the side is half the traffic for an operation; tensor cores need
// that, and plain sums of that many entries would not fit into registers.
constexpr int kTile = 64;
constexpr int kTensorCoreTile = 128;

GHOSTSHARD_HOST_DEVICE constexpr int64_t side_of(ElementType element) {
  return element == ElementType::kBFloat16 || element == ElementType::kFloat16 ? kTensorCoreTile : kTile;
}

GHOSTSHARD_HOST_DEVICE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tiles of the lower triangle, diagonal included, of a Gram matrix of this many rows.
GHOSTSHARD_HOST_DEVICE int64_t triangle_tiles(int64_t rows, int64_t side = kTile) {
  const int64_t down = ceil_div(rows, side);
  return down * (down + 1) / 2;
}

GHOSTSHARD_HOST_DEVICE int64_t rectangle_tiles(int64_t rows, int64_t columns, int64_t side = kTile) {
  return ceil_div(rows, side) * ceil_div(columns, side);
}

struct TileIndex {
  int64_t row;
  int64_t column;
};

// The index-th tile of a lower triangle, row by row: (0,0), (1,0), (1,1), (2,0) … For index < 2^62.
GHOSTSHARD_HOST_DEVICE TileIndex triangle_index(int64_t index) {
  // The root may be off by one beyond 2^52; the two loops make it exact.
  auto row = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(index) + 1.0) - 1.0) / 2.0);
  while (row * (row + 1) / 2 > index) --row;
  while ((row + 1) * (row + 2) / 2 <= index) ++row;
  return {row, index - row * (row + 1) / 2};
}

GHOSTSHARD_HOST_DEVICE TileIndex rectangle_index(int64_t index, int64_t columns, int64_t side = kTile) {
  const int64_t across = ceil_div(columns, side);
  return {index / across, index % across};
}

// The unit that this tile belongs to; units without tiles are skipped.
GHOSTSHARD_HOST_DEVICE int64_t unit_of_tile(const UnitTiles& tiles, int64_t units, int64_t tile) {
  int64_t low = 0, high = units;  // first[low] <= tile < first[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (tiles.first[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace ghostshard::kernels::device
