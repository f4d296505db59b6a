#include "fsdp/host_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

namespace ghostshard::fsdp {
namespace {

constexpr size_t kAlignment = 64;

// The start of the underlying allocation stands in the word before the aligned one.
void release(void* aligned) {
  if (aligned != nullptr) std::free(static_cast<void**>(aligned)[-1]);
}

class ReusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    void* start = bytes > std::numeric_limits<size_t>::max() / 2 ? nullptr : std::malloc(bytes + kAlignment);
    if (start == nullptr) throw std::bad_alloc();
    // malloc aligns to 16 bytes, so there is room for a word before the next multiple of 64.
    void* aligned = static_cast<char*>(start) + (kAlignment - reinterpret_cast<uintptr_t>(start) % kAlignment);
    static_cast<void**>(aligned)[-1] = start;
    return {aligned, aligned, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

void set_up() {
  // glibc takes its lock for these, though it does not promise to. NOLINTBEGIN(concurrency-mt-unsafe)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  // NOLINTEND(concurrency-mt-unsafe)
  static ReusingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace

double peak_host_memory_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024.0;
  }
  throw std::runtime_error("/proc/self/status must tell VmHWM, this system's does not");
}

void reuse_host_memory() {
  static const bool once = [] {
    set_up();
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace ghostshard::fsdp
