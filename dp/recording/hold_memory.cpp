#include "dp/recording/hold_memory.h"

namespace ghostshard::dp {

HoldMemory::HoldMemory(int64_t capacity_bytes, at::Device device) : capacity_(capacity_bytes), device_(device) {
  TORCH_CHECK_VALUE(capacity_bytes >= 0, "hold memory must be >= 0 bytes, got ", capacity_bytes);
}

at::Tensor HoldMemory::take(at::IntArrayRef sizes) {
  used_ += c10::multiply_integers(sizes) * static_cast<int64_t>(sizeof(float));
  return at::empty(sizes, at::dtype(at::kFloat).device(device_));
}

}  // namespace ghostshard::dp
