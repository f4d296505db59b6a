#include "kernels/embedding_norm/workspace.h"

#include "kernels/device/tensors.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels {

CheckedLookup::CheckedLookup(const char* op, const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                             int64_t table_rows) {
  require(e.defined(), op, ": e must be a tensor; got an undefined one");
  const device::Matrix rows = device_matrix(op, "e", e, e.device());
  require_rows(op, "e", e, segments);
  require_id_rows(op, ids, segments, e.device());
  offsets = uploaded(segments.offsets(), e);
  lookup = {.ids = ids.const_data_ptr<int64_t>(),
            .e = rows,
            .units = {.offsets = offsets.const_data_ptr<int64_t>(), .count = segments.units()},
            .table_rows = table_rows};
}

SortWorkspace::SortWorkspace(const at::Tensor& ids)
    : values(at::empty({4, ids.size(0)}, ids.options())),
      scratch(
          at::empty({static_cast<int64_t>(device::sort_scratch_bytes(ids.size(0)))}, ids.options().dtype(at::kByte))) {
  auto* data = values.mutable_data_ptr<int64_t>();
  const int64_t rows = ids.size(0);
  order = {.keys = data,
           .rows = data + rows,
           .sorted_keys = data + 2 * rows,
           .sorted_rows = data + 3 * rows,
           .scratch = scratch.mutable_data_ptr(),
           .scratch_bytes = static_cast<size_t>(scratch.numel())};
}

LookupNormsWorkspace::LookupNormsWorkspace(const at::Tensor& e, const at::Tensor& ids)
    : numbers(at::empty({2, e.size(0)}, e.options().dtype(at::kDouble))),
      lengths(at::empty({e.size(0)}, ids.options())) {
  auto* data = numbers.mutable_data_ptr<double>();
  norms = {.norms = data, .squares = data + e.size(0), .lengths = lengths.mutable_data_ptr<int64_t>()};
}

}  // namespace ghostshard::kernels
