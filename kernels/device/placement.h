// Which tensors' operations are the device's, and on which stream. What is linked decides: with or without the CUDA
// kernels, CUDA tensors; in the programs that test device code on the CPU, all.
#pragma once

#include <ATen/ATen.h>

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

bool runs_on_device(const at::Tensor& x);

// The stream that LibTorch's own operations on this tensor would go to now.
Stream current_stream(const at::Tensor& x);

}  // namespace ghostshard::kernels::device
