#include "kernels/device/tensors.h"

#include "kernels/host/checks.h"

namespace ghostshard::kernels {
namespace {

device::Matrix rows_of(const char* op, const char* name, const at::Tensor& x) {
  return {.data = x.const_data_ptr(),
          .rows = x.size(0),
          .columns = x.size(1),
          .stride = x.stride(0),
          .element = device_element(op, name, x.scalar_type())};
}

device::Matrix rows_apart(const char* op, const char* name, const at::Tensor& x, at::Device device) {
  const bool apart = x.defined() && x.dim() == 2 && x.numel() > 0 && x.element_size() == 2 && x.stride(1) == 1 &&
                     x.stride(0) > x.size(1);
  if (!apart || x.device() != device) return device_matrix(op, name, x, device);
  return rows_of(op, name, x);
}

}  // namespace

device::ElementType device_element(const char* op, const char* name, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return device::ElementType::kFloat32;
    case at::kDouble:
      return device::ElementType::kFloat64;
    case at::kBFloat16:
      return device::ElementType::kBFloat16;
    case at::kHalf:
      return device::ElementType::kFloat16;
    default:
      throw std::invalid_argument(
          c10::str(op, ": ", name, " must be float32, float64, bfloat16 or float16; got ", type));
  }
}

device::Matrix device_matrix(const char* op, const char* name, const at::Tensor& x, at::Device device) {
  require_dense(op, name, x, device);
  require(x.dim() == 2, op, ": ", name, " must have two dimensions; got shape ", x.sizes());
  return rows_of(op, name, x);
}

DeviceRowPair device_row_pair(const char* op, const at::Tensor& a, const at::Tensor& g, const Segments& segments) {
  require(a.defined(), op, ": a must be a tensor; got an undefined one");
  const DeviceRowPair pair{.a = rows_apart(op, "a", a, a.device()), .g = rows_apart(op, "g", g, a.device())};
  require(a.scalar_type() == g.scalar_type(), op, ": a and g must have one dtype; got ", a.scalar_type(), " and ",
          g.scalar_type());
  require_rows(op, "a", a, segments);
  require_rows(op, "g", g, segments);
  return pair;
}

at::ScalarType sum_type(at::ScalarType rows) { return rows == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor uploaded(const std::vector<int64_t>& values, const at::Tensor& like) {
  // The values' memory is not pinned, so they have been taken when this returns, and the host does not wait for the
  // device.
  return at::tensor(values, at::kLong).to(like.device(), at::kLong, /*non_blocking=*/true);
}

device::Parts device_parts(const NormParts& parts) {
  return {.value = parts.value.mutable_data_ptr<double>(),
          .value_error = parts.value_error.mutable_data_ptr<double>(),
          .mass = parts.mass.mutable_data_ptr<double>(),
          .sum_error = parts.sum_error.mutable_data_ptr<double>()};
}

}  // namespace ghostshard::kernels
