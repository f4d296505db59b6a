// A 64-bit fingerprint of the bits of a layer's rows: whether they are the same ones that were seen before.
//
// Not cryptographic: it finds accidents (another microbatch, a random layer, sums in another order), with a chance of
// 2^-64 of missing one, not forgeries. Two multiplications for each 16 bytes: the time of reading the rows once.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/segments.h"

namespace ghostshard::kernels {

// a [N,d], g [N,p], contiguous tensors of any dtype on one device; shapes and segments count as well as values. Not
// the same number on all kinds of devices. Waits for a device.
uint64_t fingerprint(const at::Tensor& a, const at::Tensor& g, const Segments& segments);

}  // namespace ghostshard::kernels
