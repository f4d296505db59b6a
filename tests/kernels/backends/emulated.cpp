#include "tests/emulation/device/device.h"
#include "tests/kernels/backends/backend.h"

namespace ghostshard::kernels::backend {

at::Device device() { return emulation::device(); }

}  // namespace ghostshard::kernels::backend
