// Which devices this build has kernels for; the linked half decides (kernels/CMakeLists.txt).
#pragma once

#include <c10/core/DeviceType.h>

namespace ghostshard::kernels {

// True if device code for this type is linked; false for the CPU, which needs none.
bool has_kernels(c10::DeviceType type);

}  // namespace ghostshard::kernels
