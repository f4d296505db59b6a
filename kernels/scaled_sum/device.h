// The device's half of scaled_sum.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// out[i] += sum over u of factors[u]·held[u·elements + i], unit after unit; float32 or float64 both.
void add_scaled_held(ElementType element, const void* held, const float* factors, int64_t units, int64_t elements,
                     void* out, Stream stream);

// out [p,d] += sum over u of factors[u]·g_uᵀa_u, unit after unit: each unit's product in an accumulator of its own,
// float32 (float64 for float64 rows), which alone is scaled. out is of the accumulator's type.
void add_scaled_products(const Matrix& a, const Matrix& g, const Units& units, const float* factors, void* out,
                         Stream stream);

}  // namespace ghostshard::kernels::device
