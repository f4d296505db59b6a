#include "bench/device_kernels/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace ghostshard::bench {
namespace {

// Ten times the cache of the largest devices, and large enough that a dozen launches can be queued while it is written.
constexpr int64_t kFlushedBytes = int64_t{512} << 20;
constexpr int kCopies = 10;

bool is_there(at::Device device) {
  if (device.is_cpu()) return true;
  if (!c10::impl::hasDeviceGuardImpl(device.type())) return false;
  return device.index() < c10::impl::VirtualGuardImpl(device.type()).deviceCount();
}

}  // namespace

at::Device chosen_device(const std::string& text) {
  if (text.empty()) {
    const at::Device first(at::kCUDA, 0);
    return is_there(first) ? first : at::Device(at::kCPU);
  }
  at::Device device(at::kCPU);
  try {
    device = at::Device(text);
  } catch (const c10::Error&) {
    throw std::invalid_argument("--device must be cpu, cuda or cuda:N, got '" + text + "'");
  }
  if (!device.is_cpu() && !device.has_index()) device.set_index(0);
  if (!is_there(device)) {
    throw std::invalid_argument("--device " + text + ": this build or this machine does not have it");
  }
  return device;
}

DeviceClock::DeviceClock(at::Device device) : device_(device) {
  if (device_.is_cuda()) flushed_ = at::empty({kFlushedBytes}, at::TensorOptions(device_).dtype(at::kByte));
}

double DeviceClock::seconds(const std::function<void()>& call) {
  if (device_.is_cpu()) {
    const auto began = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  if (flushed_.defined()) flushed_.zero_();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  call();
  end.record(stream);
  end.synchronize();
  constexpr double kSecondsPerMillisecond = 1e-3;
  return kSecondsPerMillisecond * begin.elapsedTime(end);
}

double copy_bytes_per_second(DeviceClock& clock, at::Device device, int64_t buffer_bytes) {
  const at::Tensor from = at::zeros({buffer_bytes}, at::TensorOptions(device).dtype(at::kByte));
  at::Tensor to = at::zeros_like(from);
  double fastest = clock.seconds([&] { to.copy_(from); });
  for (int i = 1; i < kCopies; ++i) fastest = std::min(fastest, clock.seconds([&] { to.copy_(from); }));
  return 2.0 * static_cast<double>(buffer_bytes) / fastest;
}

}  // namespace ghostshard::bench
