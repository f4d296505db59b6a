// Rows laid out for a device's fastest loads, 16 bytes at a time: every row must begin at a multiple of 16 bytes.
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::kernels {

// x [N,d] in this dtype; shares x's storage if nothing has to change. On a device 16-bit rows begin at multiples of 16
// bytes: if d elements are no such multiple, the result is a view of rows that are up to 7 elements longer (stride(0) >
// d), and the extra elements are never read. Operations on a device take such views for a and g, and matrix products
// gain from them too.
at::Tensor aligned_rows(const at::Tensor& x, at::ScalarType type);

}  // namespace ghostshard::kernels
