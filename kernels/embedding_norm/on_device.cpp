// Table lookups, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/tensors.h"
#include "kernels/embedding_norm/workspace.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels::on_device {

void embedding_norm(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t table_rows,
                    const NormParts& parts) {
  const c10::OptionalDeviceGuard guard(e.defined() ? std::make_optional(e.device()) : std::nullopt);
  const CheckedLookup rows("embedding_norm", ids, e, segments, table_rows);
  require_parts(parts, segments.units(), e.device());
  const SortWorkspace sort(ids);
  const LookupNormsWorkspace norms(e, ids);
  device::add_lookup_norms(rows.lookup, sort.order, norms.norms, device_parts(parts), device::current_stream(e));
}

void embedding_scaled_sum(const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                          const at::Tensor& factors, at::Tensor out) {
  constexpr const char* op = "embedding_scaled_sum";
  const c10::OptionalDeviceGuard guard(e.defined() ? std::make_optional(e.device()) : std::nullopt);
  require_dense(op, "out", out, e.device());
  require(out.dim() == 2, op, ": out must have two dimensions; got shape ", out.sizes());
  const CheckedLookup rows(op, ids, e, segments, out.size(0));
  require(out.size(1) == e.size(1) && out.scalar_type() == sum_type(e.scalar_type()), op, ": out must be [table rows, ",
          e.size(1), "] of ", sum_type(e.scalar_type()), "; got ", out.sizes(), " of ", out.scalar_type());
  require_factors(op, factors, segments.units(), e.device());
  const SortWorkspace sort(ids);
  device::add_scaled_lookups(rows.lookup, sort.order, factors.const_data_ptr<float>(), out.mutable_data_ptr(),
                             device::current_stream(e));
}

void embedding_into_held(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, at::Tensor held,
                         const NormParts& parts) {
  constexpr const char* op = "embedding_into_held";
  const c10::OptionalDeviceGuard guard(e.defined() ? std::make_optional(e.device()) : std::nullopt);
  require_held_table(op, held, segments, e.device());
  const CheckedLookup rows(op, ids, e, segments, held.size(1));
  require(held.size(2) == e.size(1) && held.scalar_type() == sum_type(e.scalar_type()), op, ": held must have e's ",
          e.size(1), " columns and be of ", sum_type(e.scalar_type()), "; got ", held.sizes(), " of ",
          held.scalar_type());
  require_parts(parts, segments.units(), e.device());
  const SortWorkspace sort(ids);
  const at::Tensor partials =
      at::empty({segments.units(), device::held_chunks(held.size(1) * held.size(2))}, e.options().dtype(at::kDouble));
  device::add_lookups_to_held(rows.lookup, sort.order, held.mutable_data_ptr(), partials.mutable_data_ptr<double>(),
                              device_parts(parts), device::current_stream(e));
}

}  // namespace ghostshard::kernels::on_device
