// Norms of layers that are affine in a matrix, on the device. The mathematics of the bounds is that of
// kernels/host/unit_norms.cpp.
//
// A block works on one tile at a time and writes the tile's sums to a place of its own; a second kernel adds them unit
// by unit. So the results do not depend on the order in which blocks run, and no Gram matrix and no gradient is ever
// whole in memory.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/row_pair.cuh"
#include "kernels/device/shared.cuh"
#include "kernels/device/tile_product.cuh"
#include "kernels/device/tiles.h"
#include "kernels/device/types.h"
#include "kernels/norm_parts/bound.h"

namespace ghostshard::kernels::device {

constexpr int kFinishThreads = 128;

template <typename Tile>
struct TileShared {
  typename Tile::Storage tile;
  BlockSum<Tile::kThreads> sum;
};

template <int kSums>
struct TileSums {
  double sum[kSums];
};

// The totals of the kSums sums that a kernel wrote for each of the tiles from `begin` to `end` (exclusive). Called by
// all threads of the block; thread 0 gets the totals.
template <int kSums>
__device__ TileSums<kSums> sums_of_tiles(BlockSum<kFinishThreads>& scratch, const double* partials, int64_t begin,
                                         int64_t end) {
  TileSums<kSums> total = {};
  for (int64_t tile = begin + threadIdx.x; tile < end; tile += kFinishThreads) {
    for (int i = 0; i < kSums; ++i) total.sum[i] += partials[kSums * tile + i];
  }
  for (double& sum : total.sum) sum = block_sum(scratch, sum);
  return total;
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows and units

// Finds unit_sums [3,U] and the units whose norm has to be found; one block for each unit.
inline __global__ void sum_units(Units units, const double* a_norms, const double* g_norms, double* unit_sums,
                                 bool* wanted) {
  auto& scratch = block_shared<BlockSum<kFinishThreads>>();
  for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
    const int64_t begin = units.offsets[unit], end = units.offsets[unit + 1];
    double mass = 0, a_sum = 0, g_sum = 0;
    for (int64_t t = begin + threadIdx.x; t < end; t += kFinishThreads) {
      mass += a_norms[t] * g_norms[t];
      a_sum += a_norms[t];
      g_sum += g_norms[t];
    }
    mass = block_sum(scratch, mass);
    a_sum = block_sum(scratch, a_sum);
    g_sum = block_sum(scratch, g_sum);
    if (threadIdx.x == 0) {
      const double round_up = 1 + gamma_of(end - begin + 2, 0x1p-53);
      unit_sums[unit] = mass * round_up;
      unit_sums[units.count + unit] = a_sum * round_up;
      unit_sums[2 * units.count + unit] = g_sum * round_up;
      wanted[unit] = mass != 0 && is_finite(mass);
    }
  }
}

struct UnitMasses {
  Units units;
  const double* unit_sums;
  ElementType element;
  double roundoff;
  Parts parts;
};

// One thread for each unit.
inline __global__ void add_unit_masses(UnitMasses p) {
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; unit < p.units.count;
       unit += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const double mass = p.unit_sums[unit];
    p.parts.mass[unit] += mass;
    if (!is_finite(mass)) {
      p.parts.value[unit] += mass;
    }
    // c·g rounds once, the product with a once for each row, and the addition to the values already in the sum once
    // more.
    const int64_t terms = sum_terms(p.element, p.units.offsets[unit + 1] - p.units.offsets[unit]) + 2;
    p.parts.sum_error[unit] = fmax(p.parts.sum_error[unit], gamma_of(terms, p.roundoff));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// By Gram matrices

template <typename Element>
struct GramTiles {
  RowPair<Element> rows;
  UnitTiles tiles;
  const double* a_norms;
  const double* g_norms;
  const bool* wanted;
  double* partials;  // [tiles,3]
};

// Registers hold the sums of two products at a time. In float64 that leaves room for one block only; its eight warps of
// 16 independent sums each keep the float64 units busy.
template <typename Tile>
constexpr int kGramBlocks = sizeof(typename Tile::Sum) == 8 ? 1 : Tile::kBlocks;

// Where a thread's sums of the first product wait for the second one's: registers are too few for both beside the
// chunk's. A float64 block has a multiprocessor's registers alone.
template <typename Tile>
struct GramShared : TileShared<Tile> {
  static constexpr bool kWaits = sizeof(typename Tile::Sum) == 4;
  typename Tile::Sum waiting[kWaits ? Tile::kEntries : 1][kWaits ? Tile::kThreads : 1];
};

// The same tile of both Gram matrices at once. Both are symmetric: entries left of the diagonal count twice.
template <typename Element, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, kGramBlocks<Tile>) gram_tiles(GramTiles<Element> p) {
  using Sum = typename Tile::Sum;
  auto& shared = block_shared<GramShared<Tile>>();
  for (int64_t tile = blockIdx.x; tile < p.tiles.count; tile += gridDim.x) {
    const Units& units = p.rows.units;
    const int64_t unit = unit_of_tile(p.tiles, units.count, tile);
    if (!p.wanted[unit]) {
      continue;
    }
    const TileIndex index = triangle_index(tile - p.tiles.first[unit]);
    const int64_t end = units.offsets[unit + 1];
    const int64_t top = units.offsets[unit] + index.row * Tile::kSide;
    const int64_t left = units.offsets[unit] + index.column * Tile::kSide;
    const auto rows_from = [&](const Element* x, int64_t stride, int64_t first) {
      return RowsView<Element>{x + first * stride, stride, end - first};
    };
    Sum a_sums[Tile::kEntries], g_sums[Tile::kEntries];
    const int64_t a_stride = p.rows.stride_of_a(), g_stride = p.rows.stride_of_g();
    const Element *const a_rows = p.rows.a, *const g_rows = p.rows.g;
    Tile::product(shared.tile, rows_from(a_rows, a_stride, top), rows_from(a_rows, a_stride, left), p.rows.inputs,
                  a_sums);
    if constexpr (GramShared<Tile>::kWaits) {
      GHOSTSHARD_UNROLL(64)
      for (int entry = 0; entry < Tile::kEntries; ++entry) shared.waiting[entry][threadIdx.x] = a_sums[entry];
    }
    Tile::product(shared.tile, rows_from(g_rows, g_stride, top), rows_from(g_rows, g_stride, left), p.rows.outputs,
                  g_sums);

    double product = 0, a_weighted = 0, g_weighted = 0;
    GHOSTSHARD_UNROLL(64)
    for (int entry = 0; entry < Tile::kEntries; ++entry) {
      const int64_t s = top + Tile::row(entry), t = left + Tile::column(entry);
      if (s >= end || t > s) {
        continue;
      }
      const double times = s == t ? 1 : 2;
      const double a = GramShared<Tile>::kWaits ? shared.waiting[entry][threadIdx.x] : a_sums[entry];
      const double g = g_sums[entry];
      // An entry of a's Gram matrix errs in proportion to a's norms and is multiplied by g's entry; and the other way
      // round.
      product += times * a * g;
      a_weighted += times * fabs(a) * (p.g_norms[s] * p.g_norms[t]);
      g_weighted += times * fabs(g) * (p.a_norms[s] * p.a_norms[t]);
    }
    product = block_sum(shared.sum, product);
    a_weighted = block_sum(shared.sum, a_weighted);
    g_weighted = block_sum(shared.sum, g_weighted);
    if (threadIdx.x == 0) {
      p.partials[3 * tile] = product;
      p.partials[3 * tile + 1] = a_weighted;
      p.partials[3 * tile + 2] = g_weighted;
    }
  }
}

// The errors of one arithmetic: |computed − exact| of an entry ≤ error·|x_s|·|x_t| + underflow.
struct GramArithmetic {
  double a_error, g_error;
  double a_underflow, g_underflow;
  double tiny;      // the smallest normal number
  bool accept_all;  // no better arithmetic follows
};

struct GramFinish {
  Units units;
  UnitTiles tiles;
  const double* partials;
  const double* unit_sums;
  bool* wanted;
  Parts parts;
  GramArithmetic arithmetic;
};

// Adds up the tiles of each wanted unit and takes the norms that are certain enough. One block for each unit.
inline __global__ void gram_finish(GramFinish p) {
  auto& scratch = block_shared<BlockSum<kFinishThreads>>();
  for (int64_t unit = blockIdx.x; unit < p.units.count; unit += gridDim.x) {
    const int64_t begin = p.tiles.first[unit], end = p.tiles.first[unit + 1];
    if (begin == end || !p.wanted[unit]) {
      continue;
    }
    const auto [product, a_weighted, g_weighted] = sums_of_tiles<3>(scratch, p.partials, begin, end).sum;
    if (threadIdx.x != 0) {
      continue;
    }
    const double rows = static_cast<double>(p.units.offsets[unit + 1] - p.units.offsets[unit]);
    const double mass = p.unit_sums[unit];
    const double a_sum = p.unit_sums[p.units.count + unit], g_sum = p.unit_sums[2 * p.units.count + unit];
    const GramArithmetic& by = p.arithmetic;
    // With A, G the exact Grams, A~, G~ the computed ones and dA, dG their errors, A~G~ − AG = A~dG + G~dA − dA dG.
    const double underflow =
        2 * (by.a_underflow * g_sum * g_sum + by.g_underflow * a_sum * a_sum + by.tiny * rows * (a_sum + g_sum));
    // The sums of absolute products are at most (1 + error)·mass² each, and their own roundings gamma of their length.
    const auto length = static_cast<int64_t>(rows);
    const double sums_error =
        gamma_of(length * length + 16, 0x1p-53) * (1 + by.a_error) * (1 + by.g_error) * mass * mass;
    const double error =
        (by.g_error * a_weighted + by.a_error * g_weighted + by.a_error * by.g_error * mass * mass + sums_error) *
            (1 + gamma_of(length * length + 32, 0x1p-53)) +
        underflow;
    if (by.accept_all || certain_enough(product, error)) {
      p.parts.value[unit] += product;
      p.parts.value_error[unit] += error;
      p.wanted[unit] = false;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// By the gradient itself

template <typename Element, typename Held>
struct GradientTiles {
  RowPair<Element> rows;
  UnitTiles tiles;
  const bool* wanted;  // null: all
  Held* held;          // [U,p,d]; null: not kept
  bool accumulate;
  double* partials;  // [tiles]
};

template <typename Element, typename Tile, typename Held>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) gradient_tiles(GradientTiles<Element, Held> p) {
  auto& shared = block_shared<TileShared<Tile>>();
  for (int64_t tile = blockIdx.x; tile < p.tiles.count; tile += gridDim.x) {
    const RowPair<Element>& rows = p.rows;
    const int64_t unit = unit_of_tile(p.tiles, rows.units.count, tile);
    if (p.wanted != nullptr && !p.wanted[unit]) {
      continue;
    }
    const TileIndex index = rectangle_index(tile - p.tiles.first[unit], rows.inputs, Tile::kSide);
    const int64_t top = index.row * Tile::kSide, left = index.column * Tile::kSide;
    const int64_t begin = rows.units.offsets[unit], length = rows.units.offsets[unit + 1] - begin;
    typename Tile::Sum sums[Tile::kEntries];
    Tile::product(shared.tile, rows.columns_of_g(begin, top), rows.columns_of_a(begin, left), length, sums);

    // The tile's corner once more, and the entries' places in 32 bits: during the product its sums need the registers.
    const TileIndex again = rectangle_index(computed_here(tile) - p.tiles.first[unit], rows.inputs, Tile::kSide);
    int64_t corner = (unit * rows.outputs + again.row * Tile::kSide) * rows.inputs + again.column * Tile::kSide;
    const int64_t down = rows.outputs - again.row * Tile::kSide, across = rows.inputs - again.column * Tile::kSide;
    double squares = 0;
    GHOSTSHARD_UNROLL(64)
    for (int entry = 0; entry < Tile::kEntries; ++entry) {
      if (entry % 16 == 0) corner = computed_here(corner);  // nor are more than some entries looked up ahead
      const int i = Tile::row(entry), j = Tile::column(entry);
      if (i >= down || j >= across) {
        continue;
      }
      auto value = static_cast<Held>(sums[entry]);
      if (p.held != nullptr) {
        Held& to = p.held[corner + i * rows.inputs + j];
        if (p.accumulate) value = to + value;
        to = value;
      }
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    squares = block_sum(shared.sum, squares);
    if (threadIdx.x == 0) {
      p.partials[tile] = squares;
    }
  }
}

struct GradientFinish {
  Units units;
  UnitTiles tiles;
  const double* partials;
  double relative_error;  // of the squares' sum
  Parts parts;
  // For gradients that are not kept; null for those that are kept, whose norm is of exactly the values in memory.
  bool* wanted;
  const double* masses;
  ElementType element;
  double roundoff;
};

inline __global__ void gradient_finish(GradientFinish p) {
  auto& scratch = block_shared<BlockSum<kFinishThreads>>();
  for (int64_t unit = blockIdx.x; unit < p.units.count; unit += gridDim.x) {
    const int64_t begin = p.tiles.first[unit], end = p.tiles.first[unit + 1];
    if (p.wanted != nullptr && (begin == end || !p.wanted[unit])) {
      continue;
    }
    const double squares = sums_of_tiles<1>(scratch, p.partials, begin, end).sum[0];
    if (threadIdx.x != 0) {
      continue;
    }
    const double error = p.relative_error * squares;
    if (p.wanted == nullptr) {
      p.parts.value[unit] = squares;
      p.parts.value_error[unit] = error;
      continue;
    }
    // The gradient squared here is as far from the exact one as the sum that will be formed later.
    const int64_t terms = sum_terms(p.element, p.units.offsets[unit + 1] - p.units.offsets[unit]) + 2;
    const double distance = gamma_of(terms, p.roundoff) * p.masses[unit];
    p.parts.value[unit] += squares;
    p.parts.value_error[unit] += error + distance_of_squares(squares, distance);
    p.wanted[unit] = false;
  }
}

}  // namespace ghostshard::kernels::device
