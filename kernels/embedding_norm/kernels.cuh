// Table lookups on the device, after their rows are sorted. A run is the rows of one key; the block of the run's first
// position adds it up. Never one-hot, and no atomic additions.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/shared.cuh"
#include "kernels/device/tiles.h"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

constexpr int kLookupThreads = 128;

// Rows belong to units as tiles do.
__device__ __forceinline__ int64_t unit_of_row(const Units& units, int64_t row) {
  return unit_of_tile({.first = units.offsets, .count = 0}, units.count, row);
}

// The keys that rows are sorted by: places of the table, or of one table for each unit. There is one place more than
// the table has rows, the last: it is for rows whose id is out of range, which are added to nothing and make their
// unit's norm infinite.
struct Places {
  int64_t table_rows;
  GHOSTSHARD_HOST_DEVICE int64_t of_unit() const { return table_rows + 1; }
  GHOSTSHARD_HOST_DEVICE int64_t of_id(int64_t id) const { return id >= 0 && id < table_rows ? id : table_rows; }
  GHOSTSHARD_HOST_DEVICE bool in_table(int64_t key) const { return key % of_unit() != table_rows; }
  // The row among the table rows of all units.
  GHOSTSHARD_HOST_DEVICE int64_t row(int64_t key) const { return key / of_unit() * table_rows + key % of_unit(); }
};

struct LookupKeys {
  const int64_t* ids;
  int64_t count;
  Units units;
  Places places;
  bool by_unit;
  int64_t* keys;
  int64_t* rows;
};

inline __global__ void lookup_keys(LookupKeys p) {
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; s < p.count;
       s += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    p.keys[s] = p.places.of_id(p.ids[s]) + (p.by_unit ? unit_of_row(p.units, s) * p.places.of_unit() : 0);
    p.rows[s] = s;
  }
}

template <typename Element>
struct RunSquares {
  const Element* e;
  int64_t count, columns;
  Places places;
  const int64_t* keys;  // sorted
  const int64_t* rows;
  double* squares;   // [N]: of the run that begins here, infinite if it has no place in the table; 0 if none begins
  int64_t* lengths;  // [N]: of the run that begins here; 0 if none begins
};

template <typename Element>
__global__ void run_squares(RunSquares<Element> p) {
  auto& scratch = block_shared<BlockSum<kLookupThreads>>();
  for (int64_t first = blockIdx.x; first < p.count; first += gridDim.x) {
    const int64_t key = p.keys[first];
    const bool begins = first == 0 || p.keys[first - 1] != key;
    int64_t end = first;
    while (begins && end < p.count && p.keys[end] == key) ++end;
    double squares = 0;
    for (int64_t j = threadIdx.x; begins && j < p.columns; j += kLookupThreads) {
      double sum = 0;
      for (int64_t k = first; k < end; ++k) sum += to_float(p.e[p.rows[k] * p.columns + j]);
      squares += sum * sum;
    }
    squares = block_sum(scratch, squares);
    if (threadIdx.x == 0) {
      p.squares[first] = begins && !p.places.in_table(key) ? HUGE_VAL : squares;
      p.lengths[first] = end - first;
    }
  }
}

struct LookupFinish {
  Units units;
  int64_t columns;
  const double* norms;
  const double* squares;
  const int64_t* lengths;
  double roundoff;  // of the sums of add_scaled_lookups
  Parts parts;
};

// One block for each unit. Rows are sorted by unit first, so a unit's sorted positions are those of its rows.
inline __global__ void lookup_finish(LookupFinish p) {
  auto& scratch = block_shared<BlockSum<kLookupThreads>>();
  for (int64_t unit = blockIdx.x; unit < p.units.count; unit += gridDim.x) {
    const int64_t begin = p.units.offsets[unit], end = p.units.offsets[unit + 1];
    double mass = 0, value = 0;
    for (int64_t k = begin + threadIdx.x; k < end; k += kLookupThreads) {
      mass += p.norms[k];
      value += p.squares[k];
    }
    mass = block_sum(scratch, mass);
    value = block_sum(scratch, value);
    if (threadIdx.x != 0) {
      continue;
    }
    int64_t longest = 0;
    for (int64_t k = begin; k < end; ++k) longest = p.lengths[k] > longest ? p.lengths[k] : longest;
    mass *= 1 + gamma_of(end - begin + 2, 0x1p-53);
    // The sums by id err by gamma·(sum of absolute values), in norm at most gamma·mass; their squares and the sum of
    // these by gamma of its length, relative because every term is positive.
    const double sum_error = gamma_of(longest, 0x1p-53) * mass;
    p.parts.value[unit] += value;
    p.parts.value_error[unit] +=
        sum_error * (2 * sqrt(value) + 3 * sum_error) + gamma_of(p.columns + end - begin + 8, 0x1p-53) * value;
    p.parts.mass[unit] += mass;
    // One rounding for c·e, one for each addition to the same table row.
    p.parts.sum_error[unit] = fmax(p.parts.sum_error[unit], gamma_of(longest + 2, p.roundoff));
  }
}

template <typename Element, typename Sum>
struct ScaledRuns {
  const Element* e;
  int64_t count, columns;
  Units units;
  Places places;
  const int64_t* keys;  // sorted
  const int64_t* rows;
  const float* factors;  // null: all 1
  Sum* out;
};

template <typename Element, typename Sum>
__global__ void scaled_runs(ScaledRuns<Element, Sum> p) {
  for (int64_t first = blockIdx.x; first < p.count; first += gridDim.x) {
    const int64_t key = p.keys[first];
    if ((first > 0 && p.keys[first - 1] == key) || !p.places.in_table(key)) {
      continue;
    }
    Sum* const out = p.out + p.places.row(key) * p.columns;
    for (int64_t j = threadIdx.x; j < p.columns; j += kLookupThreads) {
      // Rows of one key stand in their order, so a unit's side by side. They may cancel: only their sum is added.
      Sum sum = out[j];
      for (int64_t k = first; k < p.count && p.keys[k] == key;) {
        const int64_t unit = unit_of_row(p.units, p.rows[k]);
        const float c = p.factors == nullptr ? 1 : p.factors[unit];
        Sum of_unit = 0;
        for (; k < p.count && p.keys[k] == key && p.rows[k] < p.units.offsets[unit + 1]; ++k) {
          if (c != 0) of_unit += static_cast<Sum>(c) * static_cast<Sum>(to_float(p.e[p.rows[k] * p.columns + j]));
        }
        if (c != 0) sum += of_unit;
      }
      out[j] = sum;
    }
  }
}

// One block adds up the squares of this many elements of a unit.
constexpr int64_t kHeldChunk = int64_t{1} << 14;

// partials [units, chunks]
template <typename Sum>
__global__ void held_squares(const Sum* held, int64_t units, int64_t elements, double* partials) {
  auto& scratch = block_shared<BlockSum<kLookupThreads>>();
  const int64_t chunks = ceil_div(elements, kHeldChunk);
  for (int64_t part = blockIdx.x; part < units * chunks; part += gridDim.x) {
    const int64_t first = part % chunks * kHeldChunk;
    const int64_t end = first + kHeldChunk < elements ? first + kHeldChunk : elements;
    const Sum* unit = held + part / chunks * elements;
    double squares = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += kLookupThreads) {
      const double value = unit[i];
      squares += value * value;
    }
    squares = block_sum(scratch, squares);
    if (threadIdx.x == 0) {
      partials[part] = squares;
    }
  }
}

struct HeldFinish {
  const double* partials;
  Units units;
  int64_t elements;
  Places places;
  const int64_t* keys;  // sorted by unit
  Parts parts;
};

// One thread for each unit, which adds the chunks in their order.
inline __global__ void held_finish(HeldFinish p) {
  const int64_t chunks = ceil_div(p.elements, kHeldChunk);
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; unit < p.units.count;
       unit += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    double squares = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) squares += p.partials[unit * chunks + chunk];
    // If an id of the unit is out of range, the last of its positions has one.
    const int64_t begin = p.units.offsets[unit], end = p.units.offsets[unit + 1];
    if (end > begin && !p.places.in_table(p.keys[end - 1])) squares = HUGE_VAL;
    p.parts.value[unit] = squares;
    p.parts.value_error[unit] = gamma_of(p.elements + 8, 0x1p-53) * squares;
  }
}

}  // namespace ghostshard::kernels::device
