// How a device's blocks share the tiles of a batch of units, and which of two ways finds a norm sooner. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/tiles.h"
#include "kernels/recording.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Running sums [U+1] of each unit's tiles, here and below of this side (kernels/device/tiles.h).
std::vector<int64_t> gram_tiles_before(const Segments& segments, int64_t side = device::kTile);
std::vector<int64_t> gradient_tiles_before(const LinearShape& shape, const Segments& segments,
                                           int64_t side = device::kTile);

// The same for each unit's rectangle of rows by columns.
std::vector<int64_t> pair_tiles_before(const Segments& rows, const Segments& columns);

// Each unit has tiles of one kind only: the gradient's if the gradient is sooner, else the Gram matrices'. A step of
// the Gram matrices takes `gram_step` times as long as a step of the gradient.
struct TileSides {
  int64_t gram = device::kTile;
  int64_t gradient = device::kTile;
};
struct PassingTiles {
  std::vector<int64_t> gram;
  std::vector<int64_t> gradient;
};
PassingTiles passing_tiles_before(const LinearShape& shape, const Segments& segments, int64_t gram_step,
                                  const TileSides& sides = {});

// How many times as long a step in float64 takes as one in the rows' own arithmetic. Data-centre devices do float64 at
// half the rate of float32 or more, others at 1/32 or 1/64 of it; tensor cores are 10 to 30 times as fast as float32.
// The values lie between those of different devices.
constexpr int64_t kFloat64OverFloat32 = 4;
constexpr int64_t kFloat64OverTensorCores = 32;

// The cost of one unit's norm: 64 × 64 parts of its tiles, times the 32-deep steps of their products.
int64_t gram_steps(const LinearShape& shape, int64_t rows, int64_t side = device::kTile);
int64_t gradient_steps(const LinearShape& shape, int64_t rows, int64_t side = device::kTile);

}  // namespace ghostshard::kernels
