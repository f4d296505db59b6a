// The device's half of scaled_sum.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// out[i] += sum over u of factors[u]·held[u·elements + i], unit after unit; float32 or float64 both.
void add_scaled_held(ElementType element, const void* held, const float* factors, int64_t units, int64_t elements,
                     void* out, Stream stream);

// out [p,d] += sum over u of factors[u]·g_uᵀa_u, in each part unit after unit: each unit's product in an accumulator of
// its own, float32 (float64 for float64 rows), which alone is scaled. out is of the accumulator's type. If there
// is more than one part, their sums are written to out [parts,p,d] instead, for the caller to add.
void add_scaled_products(const Matrix& a, const Matrix& g, const Units& units, const float* factors, int64_t parts,
                         void* out, Stream stream);

}  // namespace ghostshard::kernels::device
