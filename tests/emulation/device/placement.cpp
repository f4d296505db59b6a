// In the place of kernels/device/placement.cpp: tensors of the emulated device are its own, all others the CPU's.
#include "kernels/device/placement.h"
#include "kernels/has_kernels.h"

namespace ghostshard::kernels {

bool has_kernels(at::DeviceType type) { return type == at::kPrivateUse1; }

namespace device {

bool runs_on_device(const at::Tensor& x) { return x.is_privateuseone(); }
Stream current_stream(const at::Tensor& /*x*/) { return nullptr; }

}  // namespace device
}  // namespace ghostshard::kernels
