// Memory of the emulated device, at addresses that the host may not touch.
//
// The same pages are mapped twice. At the addresses of tensors they are readable and writable only while a kernel runs,
// so host code that follows a device pointer ends in a segmentation fault instead of a right result. Copies between
// host and device use the second addresses. Allocated memory starts as NaN (all bits set), and freed memory is set to
// NaN again.
#pragma once

#include <cstddef>

namespace ghostshard::emulation {

// Throws std::bad_alloc. Zero bytes give a null pointer.
void* allocate_device_bytes(size_t bytes);
void free_device_bytes(void* device_address) noexcept;
size_t device_bytes_in_use();
// The most bytes in use since the last reset.
size_t device_bytes_peak();
void reset_device_bytes_peak();
bool is_device_address(const void* address);

// The address at which the host can read and write the memory at this device address.
void* host_view(const void* device_address);

// While an object lives, the device's addresses can be used: for launches. Threads take turns; objects may nest.
class OpenDeviceMemory {
 public:
  OpenDeviceMemory();
  ~OpenDeviceMemory();
  OpenDeviceMemory(const OpenDeviceMemory&) = delete;
  OpenDeviceMemory& operator=(const OpenDeviceMemory&) = delete;
};

}  // namespace ghostshard::emulation
