#include "kernels/aligned_rows.h"

#include <cstdint>

namespace ghostshard::kernels {
namespace {

constexpr int64_t kAligned = 16;  // bytes

bool begins_aligned(const at::Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  const bool rows = x.stride(1) == 1 && x.stride(0) * x.element_size() % kAligned == 0;
  return x.numel() == 0 || (rows && address % kAligned == 0);
}

}  // namespace

at::Tensor aligned_rows(const at::Tensor& x, at::ScalarType type) {
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  const bool at_once = x.is_cpu() || !narrow || x.dim() != 2;
  if (at_once || (x.scalar_type() == type && begins_aligned(x))) return x.to(type);
  const int64_t step = kAligned / static_cast<int64_t>(c10::elementSize(type));
  const int64_t columns = x.size(1), longer = (columns + step - 1) / step * step;
  return at::empty({x.size(0), longer}, x.options().dtype(type)).narrow(1, 0, columns).copy_(x);
}

}  // namespace ghostshard::kernels
