// Memory of the emulated device, at addresses that the host may not touch.
//
// The same pages are mapped twice. Tensors hold addresses of the first mapping, which can be read and written only
// while a kernel runs: host code that follows a device pointer ends in a segmentation fault instead of a right result.
// Copies between host and device use the second mapping. Memory is filled with NaN (all bits set) when it is allocated
// and again when it is freed.
#pragma once

#include <cstddef>

namespace ghostshard::emulation {

// Throws std::bad_alloc. Zero bytes give a null pointer.
void* allocate_device_bytes(size_t bytes);
void free_device_bytes(void* device_address) noexcept;
size_t device_bytes_in_use();
// The most bytes in use at one time since the last reset.
size_t device_bytes_peak();
void reset_device_bytes_peak();
bool is_device_address(const void* address);

// The host's address of the memory at this device address, readable and writable at all times.
void* host_view(const void* device_address);

// Makes the device's addresses usable while it lives, for a launch. Threads take turns. One thread may hold several.
class OpenDeviceMemory {
 public:
  OpenDeviceMemory();
  ~OpenDeviceMemory();
  OpenDeviceMemory(const OpenDeviceMemory&) = delete;
  OpenDeviceMemory& operator=(const OpenDeviceMemory&) = delete;
};

}  // namespace ghostshard::emulation
