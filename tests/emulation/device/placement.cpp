// In the place of kernels/device/placement.cpp: tensors of the emulated device are its own, all others the CPU's.
#include "kernels/device/placement.h"

namespace ghostshard::kernels::device {

bool runs_on_device(const at::Tensor& x) { return x.is_privateuseone(); }
bool has_kernels(at::DeviceType type) { return type == at::kPrivateUse1; }
Stream current_stream(const at::Tensor& /*x*/) { return nullptr; }

}  // namespace ghostshard::kernels::device
