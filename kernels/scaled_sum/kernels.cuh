// The clipped sum on the device. Every element of a part of the units is summed by one thread in the order of the
// units.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/row_pair.cuh"
#include "kernels/device/shared.cuh"
#include "kernels/device/tile_product.cuh"
#include "kernels/device/tiles.h"
#include "kernels/device/types.h"
#include "kernels/device/vector.h"

namespace ghostshard::kernels::device {

constexpr int kHeldThreads = 256;

// Each thread sums kCount elements: as many as one access takes, if all of them are at multiples of its size, or one.
template <typename Scalar, int kCount>
__global__ void __launch_bounds__(kHeldThreads, 4)
    scaled_held(const Scalar* held, const float* factors, int64_t units, int64_t vectors, Scalar* out) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    Vector<Scalar, kCount>& to = vector_at<kCount>(out + i * kCount);
    Vector<Scalar, kCount> sums = to;
    for (int64_t u = 0; u < units; ++u) {
      const float c = factors[u];
      if (c != 0) {  // a value is not read for factor 0: it may be infinite
        const Vector<Scalar, kCount> values = vector_at<kCount>(held + (u * vectors + i) * kCount);
        for (int j = 0; j < kCount; ++j) sums.value[j] += static_cast<Scalar>(c) * values.value[j];
      }
    }
    to = sums;
  }
}

// Part s of the units' sum is out[s·p·d …]; one part alone is added to what is there.
template <typename Element, typename Sum>
struct ScaledProducts {
  RowPair<Element> rows;
  const float* factors;
  int64_t parts;
  Sum* out;
};

template <typename Element, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    scaled_products(ScaledProducts<Element, typename Tile::Sum> p) {
  using Sum = typename Tile::Sum;
  auto& storage = block_shared<typename Tile::Storage>();
  const RowPair<Element>& rows = p.rows;
  const int64_t tiles = rectangle_tiles(rows.outputs, rows.inputs, Tile::kSide), units = rows.units.count;
  for (int64_t work = blockIdx.x; work < tiles * p.parts; work += gridDim.x) {
    const TileIndex index = rectangle_index(work % tiles, rows.inputs, Tile::kSide);
    const int64_t top = index.row * Tile::kSide, left = index.column * Tile::kSide, part = work / tiles;
    Sum total[Tile::kEntries] = {};
    for (int64_t unit = part * units / p.parts; unit < (part + 1) * units / p.parts; ++unit) {
      const float c = p.factors[unit];
      const int64_t begin = rows.units.offsets[unit], length = rows.units.offsets[unit + 1] - begin;
      if (c == 0 || length == 0) {
        continue;
      }
      Sum sums[Tile::kEntries];
      Tile::product(storage, rows.columns_of_g(begin, top), rows.columns_of_a(begin, left), length, sums);
      GHOSTSHARD_UNROLL(64)
      for (int entry = 0; entry < Tile::kEntries; ++entry) total[entry] += static_cast<Sum>(c) * sums[entry];
    }
    const int64_t from_row = computed_here(top), from_column = computed_here(left);
    Sum* const out = p.out + part * rows.outputs * rows.inputs;
    GHOSTSHARD_UNROLL(64)
    for (int entry = 0; entry < Tile::kEntries; ++entry) {
      const int64_t i = from_row + Tile::row(entry), j = from_column + Tile::column(entry);
      if (i < rows.outputs && j < rows.inputs) {
        Sum& to = out[i * rows.inputs + j];
        to = p.parts == 1 ? to + total[entry] : total[entry];
      }
    }
  }
}

}  // namespace ghostshard::kernels::device
