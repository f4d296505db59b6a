// The seconds of a call on the device of its tensors, and the speed of memory there.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <functional>

namespace ghostshard::bench {

// cuda:0 if this program and machine have one, otherwise the CPU. std::invalid_argument for a text that names no
// device, or one that is not there.
at::Device chosen_device(const std::string& text);

class DeviceClock {
 public:
  explicit DeviceClock(at::Device device);
  // On a device: the time between two events in its queue, before which a buffer larger than its cache is written. So
  // the cache holds none of the call's tensors, and the host has queued the call by the time that the device comes to
  // it: this is the device's time, unless the call itself makes the host wait. On the CPU: wall time.
  double seconds(const std::function<void()>& call);

 private:
  at::Device device_;
  at::Tensor flushed_;
};

// Bytes a second, read and written, of a copy from one buffer of this size to another: the most that an operation which
// moves memory can be expected to reach. The fastest of some.
double copy_bytes_per_second(DeviceClock& clock, at::Device device, int64_t buffer_bytes);

}  // namespace ghostshard::bench
