// Norms of layers that are affine in a matrix: the launches of the kernels in kernels.cuh.
#include <cstdint>
#include <type_traits>

#include "kernels/device/launch.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/row_norms.cuh"
#include "kernels/linear_norm/device.h"
#include "kernels/linear_norm/kernels.cuh"
#include "kernels/tied_pair/device.h"

namespace ghostshard::kernels::device {
namespace {

// A tile of tensor cores whose sums can wait within the 99 KiB that every device since sm_80 gives a block that asks.
template <typename Element>
using FrugalGramTile = TensorCoreTile<Element, 32, 2>;

template <typename Element, typename Tile>
// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes partials
void launch_gram_tiles(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, Stream stream) {
  launch("gram_tiles", gram_tiles<Element, Tile>,
         {.work = tiles.count, .threads = Tile::kThreads, .shared_bytes = sizeof(GramShared<Tile>)}, stream,
         {.rows = row_pair<Element>(work.a, work.g, work.units),
          .tiles = tiles,
          .a_norms = work.a_norms,
          .g_norms = work.g_norms,
          .wanted = work.wanted,
          .partials = partials});
}

void launch_gram_finish(const UnitRowsWork& work, const UnitTiles& tiles, const double* partials, const Parts& parts,
                        const GramArithmetic& arithmetic, Stream stream) {
  launch("gram_finish", gram_finish,
         {.work = work.units.count, .threads = kFinishThreads, .shared_bytes = sizeof(BlockSum<kFinishThreads>)},
         stream,
         {.units = work.units,
          .tiles = tiles,
          .partials = partials,
          .unit_sums = work.unit_sums,
          .wanted = work.wanted,
          .parts = parts,
          .arithmetic = arithmetic});
}

constexpr double kFloat32Roundoff = 0x1p-24;
constexpr double kFloat64Roundoff = 0x1p-53;

double roundoff_of(ElementType element) {
  return element == ElementType::kFloat64 ? kFloat64Roundoff : kFloat32Roundoff;
}

GramArithmetic float64_arithmetic(const UnitRowsWork& work) {
  const auto error = [](int64_t columns) {
    return gamma_of(sum_terms(ElementType::kFloat64, columns), kFloat64Roundoff);
  };
  // A product or sum below the smallest normal number may be flushed to zero.
  return {.a_error = error(work.a.columns),
          .g_error = error(work.g.columns),
          .a_underflow = 2.0 * static_cast<double>(work.a.columns) * 0x1p-1022,
          .g_underflow = 2.0 * static_cast<double>(work.g.columns) * 0x1p-1022,
          .tiny = 0x1p-1022,
          .accept_all = true};
}

GramArithmetic float32_arithmetic(const UnitRowsWork& work) {
  const auto error = [](const Matrix& x) { return gamma_of(sum_terms(x.element, x.columns), kFloat32Roundoff); };
  return {.a_error = error(work.a),
          .g_error = error(work.g),
          .a_underflow = 2.0 * static_cast<double>(work.a.columns) * 0x1p-126,
          .g_underflow = 2.0 * static_cast<double>(work.g.columns) * 0x1p-126,
          .tiny = 0x1p-126,
          .accept_all = false};
}

template <typename Element, typename Held>
void launch_gradient_tiles(const GradientWork& work, Held* held, bool accumulate, const bool* wanted, Stream stream) {
  using Tile = TileFor<Element>;
  launch("gradient_tiles", gradient_tiles<Element, Tile, Held>,
         {.work = work.tiles.count, .threads = Tile::kThreads, .shared_bytes = sizeof(TileShared<Tile>)}, stream,
         {.rows = row_pair<Element>(work.a, work.g, work.units),
          .tiles = work.tiles,
          .wanted = wanted,
          .held = held,
          .accumulate = accumulate,
          .partials = work.partials});
}

// rows: null if the gradients are kept.
void launch_gradient_finish(const GradientWork& work, const UnitRowsWork* rows, const Parts& parts, Stream stream) {
  launch("gradient_finish", gradient_finish,
         {.work = work.units.count, .threads = kFinishThreads, .shared_bytes = sizeof(BlockSum<kFinishThreads>)},
         stream,
         {.units = work.units,
          .tiles = work.tiles,
          .partials = work.partials,
          .relative_error = gamma_of(work.a.columns * work.g.columns + 8, kFloat64Roundoff),
          .parts = parts,
          .wanted = rows == nullptr ? nullptr : rows->wanted,
          .masses = rows == nullptr ? nullptr : rows->unit_sums,
          .element = work.a.element,
          .roundoff = roundoff_of(work.a.element)});
}

}  // namespace

void measure_rows(const UnitRowsWork& work, Stream stream) {
  visit_element(work.a.element, [&](auto element) {
    launch_row_norms<decltype(element)>(work.a, work.a_norms, stream);
    launch_row_norms<decltype(element)>(work.g, work.g_norms, stream);
  });
  launch("sum_units", sum_units,
         {.work = work.units.count, .threads = kFinishThreads, .shared_bytes = sizeof(BlockSum<kFinishThreads>)},
         stream, work.units, static_cast<const double*>(work.a_norms), static_cast<const double*>(work.g_norms),
         work.unit_sums, work.wanted);
}

void add_masses(const UnitRowsWork& work, const Parts& parts, Stream stream) {
  launch("add_unit_masses", add_unit_masses,
         {.work = blocks_of(work.units.count, kFinishThreads), .threads = kFinishThreads}, stream,
         {.units = work.units,
          .unit_sums = work.unit_sums,
          .element = work.a.element,
          .roundoff = roundoff_of(work.a.element),
          .parts = parts});
}

void add_gram_norms(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, const Parts& parts,
                    Stream stream) {
  visit_element(work.a.element, [&](auto element) {
    using Element = decltype(element);
    if constexpr (!std::is_same_v<Element, double>) {
      if constexpr (std::is_same_v<Element, float>) {
        launch_gram_tiles<Element, TileFor<Element>>(work, tiles, partials, stream);
      } else if (most_shared_bytes() >= sizeof(GramShared<TileFor<Element>>)) {
        launch_gram_tiles<Element, TileFor<Element>>(work, tiles, partials, stream);
      } else {
        launch_gram_tiles<Element, FrugalGramTile<Element>>(work, tiles, partials, stream);
      }
      launch_gram_finish(work, tiles, partials, parts, float32_arithmetic(work), stream);
    }
  });
}

void add_gram_norms_float64(const UnitRowsWork& work, const UnitTiles& tiles, double* partials, const Parts& parts,
                            Stream stream) {
  visit_element(work.a.element, [&](auto element) {
    launch_gram_tiles<decltype(element), PlainTile<decltype(element), double>>(work, tiles, partials, stream);
  });
  launch_gram_finish(work, tiles, partials, parts, float64_arithmetic(work), stream);
}

void hold_gradients(const GradientWork& work, void* held, bool accumulate, const Parts& parts, Stream stream) {
  visit_element(work.a.element, [&](auto element) {
    using Element = decltype(element);
    using Held = typename TileFor<Element>::Sum;
    launch_gradient_tiles<Element>(work, static_cast<Held*>(held), accumulate, nullptr, stream);
  });
  launch_gradient_finish(work, nullptr, parts, stream);
}

void add_passing_norms(const GradientWork& work, const UnitRowsWork& rows, const Parts& parts, Stream stream) {
  visit_element(work.a.element, [&](auto element) {
    using Element = decltype(element);
    using Held = typename TileFor<Element>::Sum;
    launch_gradient_tiles<Element, Held>(work, nullptr, false, rows.wanted, stream);
  });
  launch_gradient_finish(work, &rows, parts, stream);
}

}  // namespace ghostshard::kernels::device
