// The peak memory of one of several sides that take turns on a device.
//
// LibTorch's allocator of the device counts the memory of all of them together. Between begin() and end() only one side
// works: memory that stays allocated is its own from then on, and its peak is the highest in between, less the memory
// of the others.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::gpt2 {

class OwnMemory {
 public:
  // On the CPU nothing is counted: peak_mib() is 0.
  explicit OwnMemory(at::Device device);
  void begin();
  void end();
  double peak_mib() const { return static_cast<double>(peak_) / (1 << 20); }

 private:
  at::Device device_;
  int64_t before_ = 0, own_ = 0, peak_ = 0;  // bytes
};

}  // namespace ghostshard::gpt2
