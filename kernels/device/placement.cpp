// Linked beside the CUDA kernels; absent.cpp is linked where there are none.
#include "kernels/device/placement.h"

#include <c10/cuda/CUDAStream.h>

namespace ghostshard::kernels::device {

bool runs_on_device(const at::Tensor& x) { return x.is_cuda(); }
bool has_kernels(at::DeviceType type) { return type == at::kCUDA; }

Stream current_stream(const at::Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()).stream(); }

}  // namespace ghostshard::kernels::device
