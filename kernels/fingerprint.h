// A 64-bit fingerprint of the bits of a layer's rows: it shows whether the same rows were seen before.
//
// Not cryptographic: it misses an accident (another microbatch, a random layer, sums in another order) with a chance of
// 2^-64, and it does not find forgeries. Two multiplications for each 16 bytes take no longer than reading the rows
// once.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/segments.h"

namespace ghostshard::kernels {

// a [N,d], g [N,p], contiguous tensors of any dtype on one device; shapes and segments count as well as values. On a
// CPU rows may be apart, and that counts too. Different kinds of devices give different numbers. If the tensors are on
// a device, the host waits for it.
uint64_t fingerprint(const at::Tensor& a, const at::Tensor& g, const Segments& segments);

}  // namespace ghostshard::kernels
