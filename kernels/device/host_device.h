// The words that differ between the two compilers of device code: nvcc, and the host's compiler in the emulation.
#pragma once

#include <cstdint>

// Marks small functions that host and device compile from the same text, so that one test covers both.
#ifdef __CUDACC__
#define GHOSTSHARD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GHOSTSHARD_HOST_DEVICE inline __attribute__((always_inline))
#endif

// Stands before a loop and says how many of its rounds may be unrolled. More would take registers that are better used
// elsewhere.
#define GHOSTSHARD_PRAGMA(text) _Pragma(#text)
#ifdef __CUDACC__
#define GHOSTSHARD_UNROLL(rounds) GHOSTSHARD_PRAGMA(unroll(rounds))
#else
#define GHOSTSHARD_UNROLL(rounds)
#endif

namespace ghostshard::kernels::device {

// The same number, of which the compiler learns nothing before this line: what follows from it is not computed before a
// product, whose sums need the registers.
GHOSTSHARD_HOST_DEVICE int64_t computed_here(int64_t x) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(x));
#endif
  return x;
}

}  // namespace ghostshard::kernels::device
