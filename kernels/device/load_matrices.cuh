// Four 8 × 8 matrices of 16-bit elements out of shared memory, in the fragments that mma.cuh takes (PTX ISA,
// "ldmatrix"). By the 32 threads of a warp together: lane 8·i + r gives the address of row r of matrix i, 16 bytes at a
// multiple of 16. Rows of one matrix in different banks (in 16 bytes: different modulo 8) are read at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ghostshard::kernels::device {

// out[i]: of matrix i row lane / 4, columns 2·(lane % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// out[i]: of matrix i column lane / 4, rows 2·(lane % 4) and the next.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace ghostshard::kernels::device
