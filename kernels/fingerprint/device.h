// The device's half of fingerprint.h: pointers in, launches out. Internal; as in linear_norm_device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// sums[k] for k < chunks: of the words of one tensor's bytes, mixed with their places and with `tensor`, modulo 2^64.
// chunks: fingerprint_chunks(bytes).
void fingerprint_chunks_of(const void* data, int64_t bytes, uint64_t tensor, uint64_t* sums, Stream stream);
// *whole = the sum of sums[k] for k < count, modulo 2^64.
void fingerprint_join(const uint64_t* sums, int64_t count, uint64_t* whole, Stream stream);

int64_t fingerprint_chunks(int64_t bytes);

}  // namespace ghostshard::kernels::device
