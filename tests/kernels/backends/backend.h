// Where the tensors of the operations under test are; chosen by what the test program is linked with. The slow twins
// and all comparisons stay on the CPU.
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"

namespace ghostshard::kernels::backend {

at::Device device();

// x itself where it is there already.
inline at::Tensor there(const at::Tensor& x) { return x.to(device()); }
inline NormParts zero_parts(int64_t units) { return NormParts::zeros(units, device()); }

}  // namespace ghostshard::kernels::backend
