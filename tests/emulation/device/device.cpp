// The parts of a device that LibTorch needs before it computes anything: memory, streams, a name.
#include "tests/emulation/device/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "tests/emulation/device/memory.h"
#include "tests/emulation/device/pinned.h"

namespace ghostshard::emulation {
namespace {

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = allocate_device_bytes(bytes);
    return {memory, memory, &free_device_bytes, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_device_bytes; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    if (bytes > 0) std::memcpy(host_view(to), host_view(from), bytes);
  }
  // Nothing is kept for later.
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = static_cast<int64_t>(device_bytes_in_use());
    bytes.peak = static_cast<int64_t>(device_bytes_peak());
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { reset_device_bytes_peak(); }
};

// One device with one stream, which does everything at once.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  // An event is the time at which it was recorded, and the copies that were queued before it.
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Recorded;
    *static_cast<Recorded*>(*event) = {Clock::now(), copies_so_far()};
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Recorded*>(event); }
  void synchronizeEvent(void* event) const override {
    count_wait();
    finish_copies(static_cast<Recorded*>(event)->copies);
  }
  void synchronizeStream(const c10::Stream&) const override { synchronizeDevice(0); }
  void synchronizeDevice(c10::DeviceIndex) const override {
    count_wait();
    finish_copies(copies_so_far());
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    const auto passed = static_cast<Recorded*>(to)->time - static_cast<Recorded*>(from)->time;
    return std::chrono::duration<double, std::milli>(passed).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Recorded {
    Clock::time_point time;
    int64_t copies;
  };
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  at::Device getDeviceFromPtr(void*) const override { return device(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  // The old memory is freed: a later read of it finds NaN.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr resized = impl->allocator()->allocate(bytes);
    const size_t kept = std::min(bytes, impl->nbytes());
    if (kept > 0) std::memcpy(host_view(resized.get()), host_view(impl->data()), kept);
    impl->set_data_ptr(std::move(resized));
    impl->set_nbytes(bytes);
  }
  // Random numbers come from the host's generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
};

// Before main(): a test's own static objects may hold tensors.
[[maybe_unused]] const bool kRegistered = [] {
  c10::register_privateuse1_backend("emulated");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, new DeviceAllocator);
  c10::impl::registerDeviceGuard(c10::DeviceType::PrivateUse1, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

at::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }

}  // namespace ghostshard::emulation
