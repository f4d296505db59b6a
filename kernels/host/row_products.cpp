#include "kernels/host/row_products.h"

#include <algorithm>
#include <cstring>

#include "kernels/device/tiles.h"
#include "kernels/host/vectorised.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GHOSTSHARD_LEVELS
#endif

namespace ghostshard::kernels {
namespace {

// Columns summed at a time: 4 + 4 rows of this length stay in the first-level cache, and a unit's rows in the second.
constexpr int64_t kChunk = 768;

using Float4 = float __attribute__((vector_size(16)));
using Float8 = float __attribute__((vector_size(32)));
using Float16 = float __attribute__((vector_size(64)));

template <typename Vector>
constexpr int kLanesOf = sizeof(Vector) / sizeof(float);

template <typename Vector>
struct MaskOf;
template <>
struct MaskOf<Float4> {
  using Type = int __attribute__((vector_size(16)));
};
template <>
struct MaskOf<Float8> {
  using Type = int __attribute__((vector_size(32)));
};
template <>
struct MaskOf<Float16> {
  using Type = int __attribute__((vector_size(64)));
};

// Picks lanes by number from those of u followed by those of v. Clang has no such builtin for numbers that it must fold
// first.
template <typename Vector, typename Mask>
[[gnu::always_inline]] inline Vector pick(const Vector& u, const Vector& v, const Mask& numbers) {
#if defined(__clang__)
  Vector out;
  for (int i = 0; i < kLanesOf<Vector>; ++i) {
    out[i] = numbers[i] < kLanesOf<Vector> ? u[numbers[i]] : v[numbers[i] - kLanesOf<Vector>];
  }
  return out;
#else
  return __builtin_shuffle(u, v, numbers);
#endif
}

// Two vectors of groups of 2·kHalf lanes become one of groups of kHalf: each group's halves are added.
template <int kHalf, typename Vector>
[[gnu::always_inline]] inline void add_halves(Vector& u, const Vector& v) {
  typename MaskOf<Vector>::Type low, high;
#pragma GCC unroll 16
  for (int i = 0; i < kLanesOf<Vector>; ++i) {
    low[i] = i / kHalf * 2 * kHalf + i % kHalf;
    high[i] = low[i] + kHalf;
  }
  u = pick(u, v, low) + pick(u, v, high);
}

// Turns kCount vectors, one for each entry, into kCount/lanes vectors of entries in order; log2(lanes) roundings.
template <int kHalf, int kCount, typename Vector>
[[gnu::always_inline]] inline void sum_lanes(Vector* acc) {
  if constexpr (kHalf >= 1) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kCount / 2; ++i) {
      acc[i] = acc[2 * i];
      add_halves<kHalf>(acc[i], acc[2 * i + 1]);
    }
    sum_lanes<kHalf / 2, kCount / 2>(acc);
  }
}

template <typename Vector>
constexpr int whole_vectors(int entries) {
  return (entries + kLanesOf<Vector> - 1) / kLanesOf<Vector> * kLanesOf<Vector>;
}

// Writes kX rows times kY rows over `columns` to sums[kX·kY], and zeros up to a whole vector. Inlined into one function
// for each processor level.
template <typename Vector, int kX, int kY>
[[gnu::always_inline]] inline void tile(const float* const* x, const float* const* y, int64_t columns, float* sums) {
  constexpr int64_t lanes = kLanesOf<Vector>;
  constexpr int entries = whole_vectors<Vector>(kX * kY);
  Vector acc[entries] = {};
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    Vector right[kY];
#pragma GCC unroll 8
    for (int j = 0; j < kY; ++j) std::memcpy(&right[j], y[j] + c, sizeof(Vector));
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) {
      Vector left;
      std::memcpy(&left, x[i] + c, sizeof(Vector));
#pragma GCC unroll 8
      for (int j = 0; j < kY; ++j) acc[i * kY + j] += left * right[j];
    }
  }
  if (c < columns) {
    const size_t bytes = static_cast<size_t>(columns - c) * sizeof(float);
    Vector right[kY] = {};
    for (int j = 0; j < kY; ++j) std::memcpy(&right[j], y[j] + c, bytes);
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) {
      Vector left = {};
      std::memcpy(&left, x[i] + c, bytes);
#pragma GCC unroll 8
      for (int j = 0; j < kY; ++j) acc[i * kY + j] += left * right[j];
    }
  }
  sum_lanes<lanes / 2, entries>(acc);
  std::memcpy(sums, acc, sizeof(float) * entries);
}

struct Call {
  const float* x;
  int64_t x_rows;
  const float* y;
  int64_t y_rows;
  int64_t columns, stride, diagonal;
  float* out;
  int64_t out_stride;
  bool adds = false;   // to what stands in out
  int64_t beyond = 0;  // columns of x that follow in a later call
};

// Into the second-level cache: rows as long as a vocabulary lie far apart, so that the processor does not foresee where
// the next chunk is.
[[gnu::always_inline]] inline void fetch_ahead(const float* from, int64_t columns) {
  constexpr int64_t kLine = 16;
  for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(from + c, /*rw=*/0, /*locality=*/2);
}

template <typename Vector, int kX, int kY>
[[gnu::always_inline]] inline void all_tiles(const Call& call) {
  for (int64_t first = 0; first == 0 || first < call.columns; first += kChunk) {
    const int64_t columns = std::min(kChunk, call.columns - first);
    for (int64_t s = 0; s < call.x_rows; s += kX) {
      const int64_t last_row = std::min(s + kX, call.x_rows) - 1;
      const float* x[kX];
      for (int i = 0; i < kX; ++i) x[i] = call.x + std::min(s + i, last_row) * call.stride + first;
      const int64_t ahead = std::min(kChunk, call.columns + call.beyond - first - columns);
      for (int i = 0; i < kX; ++i) fetch_ahead(x[i] + columns, ahead);
      const int64_t y_end = std::min(call.y_rows, last_row + call.diagonal + 1);
      for (int64_t t = 0; t < y_end; t += kY) {
        const int64_t last_column = std::min(t + kY, call.y_rows) - 1;
        const float* y[kY];
        for (int j = 0; j < kY; ++j) y[j] = call.y + std::min(t + j, last_column) * call.stride + first;
        float sums[whole_vectors<Vector>(kX * kY)];
        tile<Vector, kX, kY>(x, y, columns, sums);
        for (int64_t i = 0; s + i <= last_row; ++i) {
          float* to = call.out + (s + i) * call.out_stride + t;
          for (int64_t j = 0; t + j <= last_column; ++j)
            to[j] = first == 0 && !call.adds ? sums[i * kY + j] : to[j] + sums[i * kY + j];
        }
      }
    }
  }
}

// The tiles are as large as the level's registers allow: of 16, twelve for sums, three for right and one for left.
#ifdef GHOSTSHARD_LEVELS
__attribute__((target("arch=x86-64-v4"))) void level_4(const Call& call) { all_tiles<Float16, 4, 4>(call); }
__attribute__((target("arch=x86-64-v3"))) void level_3(const Call& call) { all_tiles<Float8, 4, 3>(call); }
#endif
void level_1(const Call& call) { all_tiles<Float4, 4, 3>(call); }

struct Level {
  void (*run)(const Call&);
  int64_t lanes;
};

Level choose_level() {
#ifdef GHOSTSHARD_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) return {level_4, kLanesOf<Float16>};
  if (__builtin_cpu_supports("x86-64-v3")) return {level_3, kLanesOf<Float8>};
#endif
  return {level_1, kLanesOf<Float4>};
}

const Level& level() {
  static const Level chosen = choose_level();
  return chosen;
}

}  // namespace

int64_t row_product_terms(int64_t columns) {
  const int64_t in_lane = device::ceil_div(std::min(columns, kChunk), level().lanes);
  constexpr int64_t kHalvings = 4;  // of 16 lanes; fewer lanes need fewer
  return std::max<int64_t>(1, in_lane) + kHalvings + chunks_of(columns);
}

void row_products(const float* x, int64_t x_rows, const float* y, int64_t y_rows, int64_t columns, int64_t stride,
                  int64_t diagonal, float* out, int64_t out_stride) {
  level().run({x, x_rows, y, y_rows, columns, stride, diagonal, out, out_stride});
}

void row_products_and_squares(const float* x, int64_t rows, int64_t columns, int64_t stride, float* out,
                              double* squares, bool adds) {
  if (!adds) std::fill_n(squares, rows, 0.0);
  for (int64_t first = 0; first == 0 || first < columns; first += kChunk) {
    const int64_t some = std::min(kChunk, columns - first);
    level().run({.x = x + first,
                 .x_rows = rows,
                 .y = x + first,
                 .y_rows = rows,
                 .columns = some,
                 .stride = stride,
                 .diagonal = 0,
                 .out = out,
                 .out_stride = rows,
                 .adds = adds || first > 0,
                 .beyond = columns - first - some});
    for (int64_t s = 0; s < rows; ++s) squares[s] += sum_of_squares(x + s * stride + first, some);
  }
}

// One for each square, one for each chunk.
int64_t square_terms(int64_t columns) { return columns + chunks_of(columns); }

int64_t chunks_of(int64_t columns) { return std::max<int64_t>(1, device::ceil_div(columns, kChunk)); }

}  // namespace ghostshard::kernels
