// The words that differ between the two compilers of device code: nvcc, and the host's compiler in the emulation.
#pragma once

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
