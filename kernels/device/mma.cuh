// One tensor-core instruction, one function. Fragments as in the PTX ISA, "Matrix fragments for mma.m16n8k16" with
// 16-bit floating-point multiplicands. With group = lane / 4 and pair = lane % 4, two elements to a register, the one
// with the lower column (row, of y) in the lower half:
//   x [16,16]: registers 0…3 hold rows group, group+8, group, group+8; columns 2·pair, +1; the last two 8 further
//   right. y [16, 8]: registers 0, 1 hold rows 2·pair, +1 and 8 further down; column group. c [16, 8]: 0, 1 hold row
//   group, columns 2·pair, +1; 2, 3 the same 8 rows further down.
#pragma once

#include <cstdint>

#include "kernels/device/elements.cuh"

namespace ghostshard::kernels::device {

// c += x·y. The 32 threads of a warp call it together.
__device__ __forceinline__ void multiply_add_16x8x16(BFloat16 /*format*/, float (&c)[4], const uint32_t (&x)[4],
                                                     const uint32_t (&y)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}

__device__ __forceinline__ void multiply_add_16x8x16(Float16 /*format*/, float (&c)[4], const uint32_t (&x)[4],
                                                     const uint32_t (&y)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}

}  // namespace ghostshard::kernels::device
