// How a device's blocks share out the tiles of a batch of units, and which of two ways finds a norm sooner. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear_norm.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Running sums [U+1] of each unit's tiles.
std::vector<int64_t> gram_tiles_before(const Segments& segments);
std::vector<int64_t> gradient_tiles_before(const LinearShape& shape, const Segments& segments);

// Of each unit's rectangle of rows by columns.
std::vector<int64_t> pair_tiles_before(const Segments& rows, const Segments& columns);

// Each unit has tiles of one kind, and of the other none: the gradient's where a step of the Gram's takes `gram_step`
// times as long as one of the gradient's and the gradient is sooner all the same.
struct PassingTiles {
  std::vector<int64_t> gram;
  std::vector<int64_t> gradient;
};
PassingTiles passing_tiles_before(const LinearShape& shape, const Segments& segments, int64_t gram_step);

// How long a step in float64 takes beside one of the rows' own. Data-centre devices halve the rate of float32 or come
// close to it, others divide it by 32 or 64, and tensor cores are 10 to 30 times as fast as float32: with more than one
// device in mind, in between.
constexpr int64_t kFloat64OverFloat32 = 4;
constexpr int64_t kFloat64OverTensorCores = 32;

// What a norm of one unit costs, in tiles times the 32-deep steps of their products.
int64_t gram_steps(const LinearShape& shape, int64_t rows);
int64_t gradient_steps(const LinearShape& shape, int64_t rows);

}  // namespace ghostshard::kernels
