// The device of the operations under test (tests/support/device.h), in these tests' words.
#pragma once

#include "kernels/norm_parts.h"
#include "tests/support/device.h"

namespace ghostshard::kernels::backend {

using tests::there;

inline at::Device device() { return tests::test_device(); }
inline NormParts zero_parts(int64_t units) { return NormParts::zeros(units, device()); }

}  // namespace ghostshard::kernels::backend
