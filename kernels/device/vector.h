// Several elements read or written by one instruction.
#pragma once

#include <cstdint>

#include "kernels/device/host_device.h"

namespace ghostshard::kernels::device {

// The widest access of one thread, in bytes.
constexpr int kWidest = 16;

template <typename T, int kCount = kWidest / static_cast<int>(sizeof(T))>
struct alignas(sizeof(T) * kCount) Vector {
  T value[kCount];
};

// The kCount elements from `first` on; their address must be a multiple of their size.
template <int kCount, typename T>
GHOSTSHARD_HOST_DEVICE const Vector<T, kCount>& vector_at(const T* first) {
  return *reinterpret_cast<const Vector<T, kCount>*>(first);
}
template <int kCount, typename T>
GHOSTSHARD_HOST_DEVICE Vector<T, kCount>& vector_at(T* first) {
  return *reinterpret_cast<Vector<T, kCount>*>(first);
}

template <int kBytes>
GHOSTSHARD_HOST_DEVICE bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kBytes == 0;
}

// Whether every line begins at a multiple of this many bytes, if lines are `stride` elements apart.
template <int kBytes, typename T>
GHOSTSHARD_HOST_DEVICE bool lines_are_aligned(const T* first, int64_t stride) {
  return is_aligned<kBytes>(first) && stride % (kBytes / static_cast<int>(sizeof(T))) == 0;
}

}  // namespace ghostshard::kernels::device
