// The tied pair: the launches of the kernels in kernels.cuh.
#include "kernels/tied_pair/kernels.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/device/row_norms.cuh"
#include "kernels/tied_pair/device.h"

namespace ghostshard::kernels::device {

void add_cross_terms(const TiedPairWork& work, const Parts& parts, Stream stream) {
  visit_element(work.lookup.e.element, [&](auto zero) {
    using Type = decltype(zero);
    using Tile = PlainTile<Type, double>;
    launch_row_norms<Type>(work.lookup.e, work.e_norms, stream);
    launch("cross_tiles", cross_tiles<Type, Tile>,
           {.work = work.cross.count, .threads = Tile::kThreads, .shared_bytes = sizeof(TileShared<Tile>)}, stream,
           {.e = static_cast<const Type*>(work.lookup.e.data),
            .h = static_cast<const Type*>(work.head.a.data),
            .b = static_cast<const Type*>(work.head.g.data),
            .ids = work.lookup.ids,
            .columns = work.head.a.columns,
            .table_rows = work.head.g.columns,
            .h_stride = work.head.a.stride,
            .b_stride = work.head.g.stride,
            .lookups = work.lookup.units,
            .tokens = work.head.units,
            .tiles = work.cross,
            .e_norms = work.e_norms,
            .h_norms = work.head.a_norms,
            .partials = work.partials});
  });
  launch("cross_finish", cross_finish,
         {.work = work.head.units.count, .threads = kFinishThreads, .shared_bytes = sizeof(BlockSum<kFinishThreads>)},
         stream,
         {.lookups = work.lookup.units,
          .tokens = work.head.units,
          .tiles = work.cross,
          .partials = work.partials,
          .columns = work.head.a.columns,
          .element = work.head.a.element,
          .cross_sums = work.cross_sums,
          .uncertain = work.uncertain,
          .wanted = work.head.wanted,
          .parts = parts});
}

void replace_uncertain(const TiedPairWork& work, const Parts& lookups, const Parts& grams, const Parts& parts,
                       Stream stream) {
  const int64_t units = work.head.units.count;
  launch("take_certain", take_certain, {.work = blocks_of(units, kFinishThreads), .threads = kFinishThreads}, stream,
         units, static_cast<const bool*>(work.uncertain), static_cast<const double*>(work.cross_sums), lookups, grams,
         parts);
}

}  // namespace ghostshard::kernels::device
