// Per-unit sums of rows: the launch of the kernel in kernels.cuh.
#include "kernels/affine_norm/kernels.cuh"

#include <type_traits>

#include "kernels/affine_norm/device.h"
#include "kernels/device/launch.cuh"

namespace ghostshard::kernels::device {

void sum_rows_of_units(const RowSums& work, Stream stream) {
  const int64_t strips = strips_of(work.g.columns);
  visit_element(work.g.element, [&](auto zero) {
    using Type = decltype(zero);
    using Sum = std::conditional_t<std::is_same_v<Type, double>, double, float>;
    launch("sum_rows", sum_rows<Type, Sum>,
           {.work = work.units.count * strips, .threads = kRowSumThreads, .shared_bytes = sizeof(RowSumShared)}, stream,
           {.g = static_cast<const Type*>(work.g.data),
            .factors = static_cast<const Type*>(work.factors),
            .columns = work.g.columns,
            .strips = strips,
            .units = work.units,
            .out = static_cast<Sum*>(work.out),
            .accumulate = work.accumulate,
            .partials = work.partials});
  });
  launch("finish_row_sums", finish_row_sums, {.work = work.units.count, .threads = kWarp}, stream,
         {.units = work.units,
          .columns = work.g.columns,
          .strips = strips,
          .partials = work.partials,
          .parts = work.parts});
}

}  // namespace ghostshard::kernels::device
