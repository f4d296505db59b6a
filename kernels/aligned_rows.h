// Rows as devices load them fastest: 16 bytes at a time, for which every row must begin at a multiple of 16.
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::kernels {

// x [N,d] in this dtype; its own storage where that is so already. On a device 16-bit rows begin at multiples of 16
// bytes: where d elements are none, the result is a view of rows that are up to 7 elements longer (stride(0) > d),
// whose ends are never read. Operations on a device take such views for a and g; matrix products are served by them,
// too.
at::Tensor aligned_rows(const at::Tensor& x, at::ScalarType type);

}  // namespace ghostshard::kernels
