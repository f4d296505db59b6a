// The cross term of a table used as embedding and as head, on the device: the sum over a unit's lookups s and tokens t
// of b_t[x_s]·⟨e_s,h_t⟩, tile by tile, in float64. (It costs T²·d; the head's own Gram matrix costs T²·V.)
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/linear_norm/kernels.cuh"
#include "kernels/norm_parts/bound.h"

namespace ghostshard::kernels::device {

template <typename Element>
struct CrossTiles {
  const Element* e;
  const Element* h;
  const Element* b;
  const int64_t* ids;
  int64_t columns, table_rows;
  int64_t h_stride, b_stride;
  Units lookups, tokens;
  UnitTiles tiles;
  const double* e_norms;
  const double* h_norms;
  double* partials;  // [tiles,3]: the term, the same from absolute values and norms, the sum of |b_t[x_s]|
};

template <typename Element, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, kGramBlocks<Tile>) cross_tiles(CrossTiles<Element> p) {
  auto& shared = block_shared<TileShared<Tile>>();
  for (int64_t tile = blockIdx.x; tile < p.tiles.count; tile += gridDim.x) {
    const int64_t unit = unit_of_tile(p.tiles, p.tokens.count, tile);
    const int64_t e_end = p.lookups.offsets[unit + 1], h_begin = p.tokens.offsets[unit];
    const int64_t h_end = p.tokens.offsets[unit + 1];
    const TileIndex index = rectangle_index(tile - p.tiles.first[unit], h_end - h_begin);
    const int64_t top = p.lookups.offsets[unit] + index.row * kTile;
    const int64_t left = h_begin + index.column * kTile;
    const int64_t h_stride = row_stride<Element>(p.columns, p.h_stride);
    const int64_t b_stride = row_stride<Element>(p.table_rows, p.b_stride);
    double inner[Tile::kEntries];
    Tile::product(shared.tile, RowsView<Element>{p.e + top * p.columns, p.columns, e_end - top},
                  RowsView<Element>{p.h + left * h_stride, h_stride, h_end - left}, p.columns, inner);
    double sums[3] = {};
    GHOSTSHARD_UNROLL(64)
    for (int entry = 0; entry < Tile::kEntries; ++entry) {
      const int64_t s = top + Tile::row(entry), t = left + Tile::column(entry);
      if (s >= e_end || t >= h_end) {
        continue;
      }
      const int64_t id = p.ids[s];
      // A negative id becomes large. The norm of a lookup beyond the table is infinite in any case.
      const bool in_table = static_cast<uint64_t>(id) < static_cast<uint64_t>(p.table_rows);
      const double m = in_table ? static_cast<double>(to_float(p.b[t * b_stride + id])) : HUGE_VAL;
      sums[0] += m * inner[entry];
      sums[1] += fabs(m) * (p.e_norms[s] * p.h_norms[t]);
      sums[2] += fabs(m);
    }
    for (int i = 0; i < 3; ++i) {
      const double sum = block_sum(shared.sum, sums[i]);
      if (threadIdx.x == 0) {
        p.partials[3 * tile + i] = sum;
      }
    }
  }
}

struct CrossFinish {
  Units lookups, tokens;
  UnitTiles tiles;
  const double* partials;
  int64_t columns;
  ElementType element;
  double* cross_sums;
  bool* uncertain;
  bool* wanted;
  Parts parts;
};

// One block for each unit.
inline __global__ void cross_finish(CrossFinish p) {
  auto& scratch = block_shared<BlockSum<kFinishThreads>>();
  for (int64_t unit = blockIdx.x; unit < p.tokens.count; unit += gridDim.x) {
    const int64_t begin = p.tiles.first[unit], end = p.tiles.first[unit + 1];
    const TileSums<3> sums = sums_of_tiles<3>(scratch, p.partials, begin, end);
    if (threadIdx.x != 0) {
      continue;
    }
    const double term = sums.sum[0], magnitude = sums.sum[1], logits = sums.sum[2];
    const int64_t rows = p.lookups.offsets[unit + 1] - p.lookups.offsets[unit];
    const int64_t tokens = p.tokens.offsets[unit + 1] - p.tokens.offsets[unit];
    // The rows of both uses are summed into one buffer: one sum of all these terms.
    const double roundoff = p.element == ElementType::kFloat64 ? 0x1p-53 : 0x1p-24;
    const double sum_error = gamma_of(sum_terms(p.element, tokens) + rows + 4, roundoff);
    p.parts.sum_error[unit] = fmax(p.parts.sum_error[unit], sum_error);
    // An inner product errs by gamma of its length times its rows' norms and is multiplied by |b|; the sum errs by
    // gamma of its own length.
    const double inner_error = gamma_of(sum_terms(ElementType::kFloat64, p.columns), 0x1p-53);
    const double summing = gamma_of(rows * tokens + 32, 0x1p-53) * (1 + inner_error);
    const double underflow = 0x1p-1021 * (static_cast<double>(p.columns) * logits + static_cast<double>(rows * tokens));
    const double error = (inner_error + summing) * magnitude * (1 + gamma_of(rows * tokens + 64, 0x1p-53)) + underflow;
    const double value = p.parts.value[unit], value_error = p.parts.value_error[unit];
    p.cross_sums[unit] = 2 * term;
    p.cross_sums[p.tokens.count + unit] = 2 * error;
    const bool known = is_finite(value) && is_finite(value_error);
    const double total = value + 2 * term;
    // Three roundings of the addition.
    const double total_error = (value_error + 2 * error) * (1 + 0x1p-50) + 0x1p-51 * (fabs(value) + fabs(2 * term));
    const bool uncertain =
        known && end > begin && p.element != ElementType::kFloat64 && !certain_enough(total, total_error);
    p.uncertain[unit] = uncertain;
    p.wanted[unit] = p.wanted[unit] && uncertain;
    if (known && end > begin) {
      p.parts.value[unit] = total;
      p.parts.value_error[unit] = error_of_tied(value + value_error, total, total_error);
    }
  }
}

// One thread for each unit.
inline __global__ void take_certain(int64_t units, const bool* uncertain, const double* cross_sums, Parts lookups,
                                    Parts grams, Parts parts) {
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; unit < units;
       unit += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    if (!uncertain[unit]) {
      continue;
    }
    const double e = lookups.value[unit], h = grams.value[unit], cross = cross_sums[unit];
    const double apart_error = lookups.value_error[unit] + grams.value_error[unit];
    const double error =
        (apart_error + cross_sums[units + unit]) * (1 + 0x1p-50) + 0x1p-50 * (fabs(e) + fabs(h) + fabs(cross));
    parts.value[unit] = e + h + cross;
    parts.value_error[unit] = error_of_tied(e + h + apart_error, e + h + cross, error);
  }
}

}  // namespace ghostshard::kernels::device
