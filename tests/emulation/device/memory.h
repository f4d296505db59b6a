// Memory of the emulated device: at addresses that the host may not touch.
//
// The same pages are mapped twice. Where tensors say they are, nothing is readable or writable unless a kernel runs, so
// that code of the host which follows a device pointer ends in a segmentation fault, and not in a right result. The
// second place is for copies between host and device, which know how to find it. What is allocated starts as NaN (all
// bits set), and what is freed is set so again.
#pragma once

#include <cstddef>

namespace ghostshard::emulation {

// Throws std::bad_alloc. Zero bytes give a null pointer.
void* allocate_device_bytes(size_t bytes);
void free_device_bytes(void* device_address) noexcept;
size_t device_bytes_in_use();
// The most that was in use since it was last reset.
size_t device_bytes_peak();
void reset_device_bytes_peak();
bool is_device_address(const void* address);

// Where the host can read and write what is at this device address.
void* host_view(const void* device_address);

// While one lives the device's addresses can be used: for launches. Threads take turns; nests.
class OpenDeviceMemory {
 public:
  OpenDeviceMemory();
  ~OpenDeviceMemory();
  OpenDeviceMemory(const OpenDeviceMemory&) = delete;
  OpenDeviceMemory& operator=(const OpenDeviceMemory&) = delete;
};

}  // namespace ghostshard::emulation
