// Replaces kernels/device/placement.cpp: operations on tensors of the emulated device run on it, all others on the CPU.
#include "kernels/device/placement.h"
#include "kernels/has_kernels.h"

namespace ghostshard::kernels {

bool has_kernels(at::DeviceType type) { return type == at::kPrivateUse1; }

namespace device {

bool runs_on_device(const at::Tensor& x) { return x.is_privateuseone(); }
Stream current_stream(const at::Tensor& /*x*/) { return nullptr; }

}  // namespace device
}  // namespace ghostshard::kernels
