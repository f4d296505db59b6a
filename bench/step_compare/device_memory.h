// Peak memory of one of several that take turns on a device.
//
// LibTorch's allocator of the device knows what all of them have together. Between begin() and end() only one works:
// what stays of it is its own from then on, and the highest in between, less what the others have, is its peak.
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
