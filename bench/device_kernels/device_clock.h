// Seconds of a call on its tensors' device, and the speed of that device's memory.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <functional>

namespace ghostshard::bench {

// For an empty text cuda:0 if this program and machine have one, else the CPU. Throws std::invalid_argument if the text
// names no device, or one that is not there.
at::Device chosen_device(const std::string& text);

class DeviceClock {
 public:
  explicit DeviceClock(at::Device device);
  // On a device: the time between two events in its queue, after a buffer larger than its cache was written. So none of
  // the call's tensors is in the cache, and the host has queued the call by the time the device reaches it; the time is
  // the device's, unless the call itself makes the host wait. On the CPU: wall time.
  double seconds(const std::function<void()>& call);

 private:
  at::Device device_;
  at::Tensor flushed_;
};

// Bytes a second, read and written, of a copy from one buffer of this size to another, the fastest of some: an
// operation that moves memory cannot be expected to exceed it.
double copy_bytes_per_second(DeviceClock& clock, at::Device device, int64_t buffer_bytes);

}  // namespace ghostshard::bench
