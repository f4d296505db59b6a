// The device's half of fingerprint.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// sums[k], for k < fingerprint_chunks(bytes): the sum modulo 2^64 of the words of one tensor's bytes, each mixed with
// its place and with `tensor`.
void fingerprint_chunks_of(const void* data, int64_t bytes, uint64_t tensor, uint64_t* sums, Stream stream);
// *whole = the sum of sums[k] for k < count, modulo 2^64.
void fingerprint_join(const uint64_t* sums, int64_t count, uint64_t* whole, Stream stream);

int64_t fingerprint_chunks(int64_t bytes);

}  // namespace ghostshard::kernels::device
