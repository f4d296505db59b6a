// LibTorch's operations on the emulated device: a few that only concern memory; all others are the CPU's, on copies of
// the arguments.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_cpu_dispatch.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

#include "tests/emulation/device/device.h"
#include "tests/emulation/device/memory.h"
#include "tests/emulation/device/pinned.h"

namespace ghostshard::emulation {
namespace {

std::atomic<int64_t> waits{0};
thread_local int within_fallback = 0;  // its copies belong to the emulation and are no waits

bool is_there(const at::Tensor& x) { return x.device().type() == c10::DeviceType::PrivateUse1; }

// The same values at addresses that the host can reach.
at::Tensor seen_by_host(const at::Tensor& x) {
  if (!is_there(x)) return x;
  return at::from_blob(host_view(x.const_data_ptr()), x.sizes(), x.strides(), x.options().device(at::kCPU));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(c10::DeviceType::PrivateUse1),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::GetAllocator(c10::DeviceType::PrivateUse1),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool down = is_there(from) && !is_there(to), up = !is_there(from) && is_there(to);
  const bool later = down && non_blocking && within_fallback == 0 && is_pinned(to.const_data_ptr());
  if (later) {
    copy_later(seen_by_host(from).clone(), to);
    return to;
  }
  if ((down || (up && !non_blocking)) && within_fallback == 0) ++waits;
  if (to.numel() > 0) seen_by_host(to).copy_(seen_by_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = static_cast<size_t>(self.storage_offset() + c10::multiply_integers(sizes)) * self.element_size();
  if (self.storage().nbytes() < bytes) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// torch.save and torch.load look at storages through these.
at::Tensor& set(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  const auto extents = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.empty()) {
    impl->set_sizes_contiguous(extents);
  } else {
    impl->set_sizes_and_strides(extents, C10_AS_INTARRAYREF_SLOW(stride));
  }
  return self;
}
at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const c10::SymInt elements(static_cast<int64_t>(source.nbytes() / self.element_size()));
  return set(self, std::move(source), 0, elements, {});
}

at::Scalar item(const at::Tensor& self) {
  ++waits;
  return seen_by_host(self).item();
}

// Attention by plain operations, which every device has.
int64_t plain_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        double, bool, std::optional<double>, bool) {
  return 0;
}

// Convolutions have no form that the fallback below could forward.
at::Tensor brought_back(const at::Tensor& on_host) {
  if (!on_host.defined()) return on_host;
  at::Tensor there = at::empty(on_host.sizes(), on_host.options().device(device()));
  if (there.numel() > 0) seen_by_host(there).copy_(on_host);
  return there;
}
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const std::optional<at::Tensor> shift = bias && bias->defined() ? std::optional(seen_by_host(*bias)) : std::nullopt;
  return brought_back(at::convolution_symint(seen_by_host(x), seen_by_host(weight), shift, stride, padding, dilation,
                                             transposed, output_padding, groups));
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& g, const at::Tensor& x, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  const std::vector<c10::SymInt> channels{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  const auto [of_x, of_weight, of_bias] = at::convolution_backward_symint(
      seen_by_host(g), seen_by_host(x), seen_by_host(weight), c10::SymIntArrayRef(channels), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  return {brought_back(of_x), brought_back(of_weight), brought_back(of_bias)};
}

void require_device(const c10::OperatorHandle& operation, const at::Tensor& x) {
  if (!x.defined() || is_there(x) || (x.dim() == 0 && x.device().is_cpu())) return;
  TORCH_CHECK(false, operation.operator_name(), ": all tensors must be on one device, got one on ", x.device(),
              " beside those of the emulated device");
}

void check_devices(const c10::OperatorHandle& operation, const torch::jit::Stack& stack) {
  for (const c10::IValue& argument : torch::jit::last(stack, operation.schema().arguments().size())) {
    if (argument.isTensor()) require_device(operation, argument.toTensor());
    if (argument.isTensorList()) {
      for (const at::Tensor& x : argument.toTensorVector()) require_device(operation, x);
    }
    if (argument.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& x : argument.toOptionalTensorVector()) {
        if (x) require_device(operation, *x);
      }
    }
  }
}

void on_the_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  check_devices(operation, *stack);
  constexpr std::array<std::string_view, 5> kWaitForExtents{"aten::nonzero", "aten::masked_select", "aten::equal",
                                                            "aten::_unique2", "aten::repeat_interleave"};
  const std::string& name = operation.operator_name().name;
  if (std::find(kWaitForExtents.begin(), kWaitForExtents.end(), name) != kWaitForExtents.end()) ++waits;
  struct Within {
    Within() { ++within_fallback; }
    ~Within() { --within_fallback; }
  } const within;
  at::native::cpu_fallback(operation, stack, /*error_on_views=*/true);
}

}  // namespace

int64_t host_waits() { return waits; }
void count_wait() { ++waits; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("set_.source_Storage", TORCH_FN(set_whole));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("_local_scalar_dense", TORCH_FN(item));
  m.impl("_fused_sdp_choice", TORCH_FN(plain_attention));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>()); }

}  // namespace ghostshard::emulation
