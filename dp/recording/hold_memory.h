// The memory in which a tape holds per-unit gradients, within one microbatch.
//
// Held gradients use the allocator of activations (fsdp/host_memory.h), not a range of their own: they reuse memory
// that backward frees as it goes on.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::dp {

class HoldMemory {
 public:
  // device: the model's, and that of everything a tape keeps. std::invalid_argument for a capacity below 0.
  explicit HoldMemory(int64_t capacity_bytes, at::Device device = at::kCPU);
  // float32 [sizes], counted. Never refused: small vectors may exceed the capacity.
  at::Tensor take(at::IntArrayRef sizes);
  at::Device device() const { return device_; }
  int64_t bytes_left() const { return capacity_ > used_ ? capacity_ - used_ : 0; }
  void reset() { used_ = 0; }

 private:
  int64_t capacity_;
  at::Device device_;
  int64_t used_ = 0;
};

}  // namespace ghostshard::dp
