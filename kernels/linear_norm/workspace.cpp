#include "kernels/linear_norm/workspace.h"

#include "kernels/device/placement.h"

namespace ghostshard::kernels {

RowsWorkspace::RowsWorkspace(const DeviceRowPair& rows, const at::Tensor& like, const Segments& segments)
    : like_(like),
      offsets_(uploaded(segments.offsets(), like)),
      row_norms_(numbers({2, segments.rows()})),
      unit_sums_(numbers({3, segments.units()})),
      wanted_(at::empty({segments.units()}, like.options().dtype(at::kBool))),
      stream_(device::current_stream(like)) {
  auto* norms = row_norms_.mutable_data_ptr<double>();
  work_ = {.a = rows.a,
           .g = rows.g,
           .units = {.offsets = offsets_.const_data_ptr<int64_t>(), .count = segments.units()},
           .a_norms = norms,
           .g_norms = norms + segments.rows(),
           .unit_sums = unit_sums_.mutable_data_ptr<double>(),
           .wanted = wanted_.mutable_data_ptr<bool>()};
}

DeviceTiles::DeviceTiles(const std::vector<int64_t>& before, int64_t sums, const at::Tensor& like)
    : first(uploaded(before, like)),
      partials(at::empty({before.back(), sums}, like.options().dtype(at::kDouble))),
      tiles{.first = first.const_data_ptr<int64_t>(), .count = before.back()} {}

}  // namespace ghostshard::kernels
