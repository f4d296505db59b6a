// Table lookups, for tensors on a device.
#include "kernels/checks.h"
#include "kernels/device/placement.h"
#include "kernels/device_tensors.h"
#include "kernels/embedding_norm_device.h"
#include "kernels/on_device.h"

namespace ghostshard::kernels::on_device {
namespace {

// Waits for the device: an id out of range must be an error here, and not a write beyond the table.
void require_device_ids(const char* op, const at::Tensor& ids, const Segments& segments, int64_t table_rows,
                        at::Device device) {
  require_dense(op, "ids", ids, device);
  if (ids.scalar_type() == at::kLong && ids.dim() == 1 && ids.size(0) == segments.rows()) {
    if (ids.numel() == 0) return;
    const auto [least, most] = at::aminmax(ids);
    if (least.item<int64_t>() >= 0 && most.item<int64_t>() < table_rows) return;
  }
  require_ids(op, ids.cpu(), segments, table_rows);  // says what is wrong
}

struct CheckedLookup {
  device::Lookup lookup;
  at::Tensor offsets;
};

CheckedLookup checked(const char* op, const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                      int64_t table_rows) {
  require(e.defined(), op, ": e must be a tensor; got an undefined one");
  const device::Matrix rows = device_matrix(op, "e", e, e.device());
  require_rows(op, "e", e, segments);
  require_device_ids(op, ids, segments, table_rows, e.device());
  at::Tensor offsets = uploaded(segments.offsets(), e);
  return {.lookup = {.ids = ids.const_data_ptr<int64_t>(),
                     .e = rows,
                     .units = {.offsets = offsets.const_data_ptr<int64_t>(), .count = segments.units()},
                     .table_rows = table_rows},
          .offsets = offsets};
}

// Where a sort has its values.
struct Order {
  explicit Order(const at::Tensor& ids)
      : values(at::empty({4, ids.size(0)}, ids.options())),
        scratch(at::empty({static_cast<int64_t>(device::sort_scratch_bytes(ids.size(0)))},
                          ids.options().dtype(at::kByte))) {
    auto* data = values.mutable_data_ptr<int64_t>();
    const int64_t rows = ids.size(0);
    order = {.keys = data,
             .rows = data + rows,
             .sorted_keys = data + 2 * rows,
             .sorted_rows = data + 3 * rows,
             .scratch = scratch.mutable_data_ptr(),
             .scratch_bytes = static_cast<size_t>(scratch.numel())};
  }
  at::Tensor values, scratch;
  device::LookupOrder order{};
};

}  // namespace

void embedding_norm(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t table_rows,
                    const NormParts& parts) {
  const c10::OptionalDeviceGuard guard(e.defined() ? std::make_optional(e.device()) : std::nullopt);
  const CheckedLookup rows = checked("embedding_norm", ids, e, segments, table_rows);
  require_parts(parts, segments.units(), e.device());
  const Order order(ids);
  const at::Tensor numbers = at::empty({2, segments.rows()}, e.options().dtype(at::kDouble));
  const at::Tensor lengths = at::empty({segments.rows()}, ids.options());
  auto* data = numbers.mutable_data_ptr<double>();
  device::add_lookup_norms(
      rows.lookup, order.order,
      {.norms = data, .squares = data + segments.rows(), .lengths = lengths.mutable_data_ptr<int64_t>()},
      device_parts(parts), device::current_stream(e));
}

void embedding_scaled_sum(const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                          const at::Tensor& factors, at::Tensor out) {
  constexpr const char* op = "embedding_scaled_sum";
  const c10::OptionalDeviceGuard guard(e.defined() ? std::make_optional(e.device()) : std::nullopt);
  require_dense(op, "out", out, e.device());
  require(out.dim() == 2, op, ": out must have two dimensions; got shape ", out.sizes());
  const CheckedLookup rows = checked(op, ids, e, segments, out.size(0));
  require(out.size(1) == e.size(1) && out.scalar_type() == sum_type(e.scalar_type()), op, ": out must be [table rows, ",
          e.size(1), "] of ", sum_type(e.scalar_type()), "; got ", out.sizes(), " of ", out.scalar_type());
  require_factors(op, factors, segments.units(), e.device());
  const Order order(ids);
  device::add_scaled_lookups(rows.lookup, order.order, factors.const_data_ptr<float>(), out.mutable_data_ptr(),
                             device::current_stream(e));
}

}  // namespace ghostshard::kernels::on_device
