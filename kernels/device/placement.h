// Which tensors' operations run as device code, and on which stream. The linked half decides: CUDA tensors, with or
// without the CUDA kernels; in programs that test device code on the CPU, tensors of the emulated device.
#pragma once

#include <ATen/ATen.h>

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

bool runs_on_device(const at::Tensor& x);

// The stream that LibTorch's own operations on this tensor would use now.
Stream current_stream(const at::Tensor& x);

}  // namespace ghostshard::kernels::device
