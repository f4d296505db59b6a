// Table lookups: the launches of the kernels in kernels.cuh.
#include "kernels/embedding_norm/kernels.cuh"

#include <type_traits>

#include "kernels/device/launch.cuh"
#include "kernels/device/row_norms.cuh"
#include "kernels/embedding_norm/device.h"

namespace ghostshard::kernels::device {
namespace {

// Sorts by unit and id, or by id alone.
void sort_lookup(const Lookup& lookup, const LookupOrder& order, bool by_unit, Stream stream) {
  launch("lookup_keys", lookup_keys, {.work = blocks_of(lookup.e.rows, kLookupThreads), .threads = kLookupThreads},
         stream,
         {.ids = lookup.ids,
          .count = lookup.e.rows,
          .units = lookup.units,
          .places = {lookup.table_rows},
          .by_unit = by_unit,
          .keys = order.keys,
          .rows = order.rows});
  if (lookup.e.rows > 0) {
    sort_pairs(order, lookup.e.rows, Places{lookup.table_rows}.of_unit() * (by_unit ? lookup.units.count : 1), stream);
  }
}

template <typename Type>
using SumOf = std::conditional_t<std::is_same_v<Type, double>, double, float>;

template <typename Type>
void launch_runs(const Lookup& lookup, const LookupOrder& order, const float* factors, void* out, Stream stream) {
  launch("scaled_runs", scaled_runs<Type, SumOf<Type>>, {.work = lookup.e.rows, .threads = kLookupThreads}, stream,
         {.e = static_cast<const Type*>(lookup.e.data),
          .count = lookup.e.rows,
          .columns = lookup.e.columns,
          .units = lookup.units,
          .places = {lookup.table_rows},
          .keys = order.sorted_keys,
          .rows = order.sorted_rows,
          .factors = factors,
          .out = static_cast<SumOf<Type>*>(out)});
}

}  // namespace

void add_lookup_norms(const Lookup& lookup, const LookupOrder& order, const LookupNorms& work, const Parts& parts,
                      Stream stream) {
  sort_lookup(lookup, order, /*by_unit=*/true, stream);
  visit_element(lookup.e.element, [&](auto zero) {
    using Type = decltype(zero);
    launch_row_norms<Type>(lookup.e, work.norms, stream);
    launch("run_squares", run_squares<Type>,
           {.work = lookup.e.rows, .threads = kLookupThreads, .shared_bytes = sizeof(BlockSum<kLookupThreads>)}, stream,
           {.e = static_cast<const Type*>(lookup.e.data),
            .count = lookup.e.rows,
            .columns = lookup.e.columns,
            .places = {lookup.table_rows},
            .keys = order.sorted_keys,
            .rows = order.sorted_rows,
            .squares = work.squares,
            .lengths = work.lengths});
  });
  launch("lookup_finish", lookup_finish,
         {.work = lookup.units.count, .threads = kLookupThreads, .shared_bytes = sizeof(BlockSum<kLookupThreads>)},
         stream,
         {.units = lookup.units,
          .columns = lookup.e.columns,
          .norms = work.norms,
          .squares = work.squares,
          .lengths = work.lengths,
          .roundoff = lookup.e.element == ElementType::kFloat64 ? 0x1p-53 : 0x1p-24,
          .parts = parts});
}

void add_scaled_lookups(const Lookup& lookup, const LookupOrder& order, const float* factors, void* out,
                        Stream stream) {
  sort_lookup(lookup, order, /*by_unit=*/false, stream);
  visit_element(lookup.e.element, [&](auto zero) { launch_runs<decltype(zero)>(lookup, order, factors, out, stream); });
}

int64_t held_chunks(int64_t elements_of_a_unit) { return ceil_div(elements_of_a_unit, kHeldChunk); }

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes partials
void add_lookups_to_held(const Lookup& lookup, const LookupOrder& order, void* held, double* partials,
                         const Parts& parts, Stream stream) {
  sort_lookup(lookup, order, /*by_unit=*/true, stream);
  const int64_t elements = lookup.table_rows * lookup.e.columns;
  visit_element(lookup.e.element, [&](auto zero) {
    using Type = decltype(zero);
    launch_runs<Type>(lookup, order, nullptr, held, stream);
    launch("held_squares", held_squares<SumOf<Type>>,
           {.work = lookup.units.count * held_chunks(elements),
            .threads = kLookupThreads,
            .shared_bytes = sizeof(BlockSum<kLookupThreads>)},
           stream, static_cast<const SumOf<Type>*>(held), lookup.units.count, elements, partials);
  });
  launch("held_finish", held_finish, {.work = blocks_of(lookup.units.count, kLookupThreads), .threads = kLookupThreads},
         stream,
         {.partials = partials,
          .units = lookup.units,
          .elements = elements,
          .places = {lookup.table_rows},
          .keys = order.sorted_keys,
          .parts = parts});
}

}  // namespace ghostshard::kernels::device
