// The clipped sum: the launches of the kernels in kernels.cuh.
#include "kernels/scaled_sum/kernels.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/scaled_sum/device.h"

namespace ghostshard::kernels::device {

namespace {

template <int kCount, typename Scalar>
void launch_scaled_held(const Scalar* held, const float* factors, int64_t units, int64_t elements, Scalar* out,
                        Stream stream) {
  const int64_t vectors = elements / kCount;
  launch("scaled_held", scaled_held<Scalar, kCount>,
         {.work = blocks_of(vectors, kHeldThreads), .threads = kHeldThreads}, stream, held, factors, units, vectors,
         out);
}

}  // namespace

void add_scaled_held(ElementType element, const void* held, const float* factors, int64_t units, int64_t elements,
                     void* out, Stream stream) {
  const auto add = [&](auto zero) {
    using Scalar = decltype(zero);
    constexpr int kWide = kWidest / static_cast<int>(sizeof(Scalar));
    const auto* from = static_cast<const Scalar*>(held);
    auto* to = static_cast<Scalar*>(out);
    if (lines_are_aligned<kWidest>(from, elements) && is_aligned<kWidest>(to)) {
      launch_scaled_held<kWide>(from, factors, units, elements, to, stream);
    } else {
      launch_scaled_held<1>(from, factors, units, elements, to, stream);
    }
  };
  element == ElementType::kFloat64 ? add(double{}) : add(float{});
}

void add_scaled_products(const Matrix& a, const Matrix& g, const Units& units, const float* factors, int64_t parts,
                         void* out, Stream stream) {
  visit_element(a.element, [&](auto zero) {
    using Type = decltype(zero);
    using Tile = TileFor<Type>;
    launch("scaled_products", scaled_products<Type, Tile>,
           {.work = parts * rectangle_tiles(g.columns, a.columns, Tile::kSide),
            .threads = Tile::kThreads,
            .shared_bytes = sizeof(typename Tile::Storage)},
           stream,
           {.rows = row_pair<Type>(a, g, units),
            .factors = factors,
            .parts = parts,
            .out = static_cast<typename Tile::Sum*>(out)});
  });
}

}  // namespace ghostshard::kernels::device
