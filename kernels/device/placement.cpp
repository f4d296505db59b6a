// Linked beside the CUDA kernels; a build without them links kernels/no_device.cpp instead.
#include "kernels/device/placement.h"
#include "kernels/has_kernels.h"

#include <c10/cuda/CUDAStream.h>

namespace ghostshard::kernels {

bool has_kernels(at::DeviceType type) { return type == at::kCUDA; }

namespace device {

bool runs_on_device(const at::Tensor& x) { return x.is_cuda(); }

Stream current_stream(const at::Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()).stream(); }

}  // namespace device
}  // namespace ghostshard::kernels
