// From tensors to the arguments of device code.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/device/types.h"
#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Throws std::invalid_argument unless the type is float32, float64, bfloat16 or float16.
device::ElementType device_element(const char* op, const char* name, at::ScalarType type);

// Throws std::invalid_argument unless x is a contiguous matrix of float32, float64, bfloat16 or float16 on `device`.
device::Matrix device_matrix(const char* op, const char* name, const at::Tensor& x, at::Device device);

// Rows a and g of one dtype, on one device, that fit the segments; std::invalid_argument otherwise. 16-bit rows may
// have gaps between them (kernels/aligned_rows.h).
struct DeviceRowPair {
  device::Matrix a, g;
};
DeviceRowPair device_row_pair(const char* op, const at::Tensor& a, const at::Tensor& g, const Segments& segments);

// The dtype of sums over rows of this dtype: float64 for float64, else float32.
at::ScalarType sum_type(at::ScalarType rows);

// The values as int64 on the device of `like`; the copy is queued on its current stream.
at::Tensor uploaded(const std::vector<int64_t>& values, const at::Tensor& like);

device::Parts device_parts(const NormParts& parts);

}  // namespace ghostshard::kernels
