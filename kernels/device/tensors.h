// From tensors to what device code takes. Internal.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/device/types.h"
#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// std::invalid_argument unless it is float32, float64, bfloat16 or float16.
device::ElementType device_element(const char* op, const char* name, at::ScalarType type);

// Throws std::invalid_argument unless x is a contiguous matrix of float32, float64, bfloat16 or float16 on `device`.
device::Matrix device_matrix(const char* op, const char* name, const at::Tensor& x, at::Device device);

// Rows a and g of one dtype, on one device, that fit the segments. 16-bit rows may lie apart
// (kernels/aligned_rows.h).
struct DeviceRowPair {
  device::Matrix a, g;
};
DeviceRowPair device_row_pair(const char* op, const at::Tensor& a, const at::Tensor& g, const Segments& segments);

// What sums over rows of this dtype are kept in: float32, and float64 for float64.
at::ScalarType sum_type(at::ScalarType rows);

// int64, on the device of `like`; the copy is ordered with its current stream.
at::Tensor uploaded(const std::vector<int64_t>& values, const at::Tensor& like);

device::Parts device_parts(const NormParts& parts);

}  // namespace ghostshard::kernels
