// Loads four 8 × 8 matrices of 16-bit elements from shared memory, in the fragments that mma.cuh takes (PTX ISA,
// "ldmatrix"). The 32 threads of a warp call it together: lane 8·i + r gives the address of row r of matrix i, 16 bytes
// at a multiple of 16. Rows of one matrix are read at once if they lie in different banks (addresses / 16 that differ
// modulo 8).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ghostshard::kernels::device {

// out[i]: row lane / 4 of matrix i, columns 2·(lane % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// out[i]: column lane / 4 of matrix i, rows 2·(lane % 4) and the next.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace ghostshard::kernels::device
