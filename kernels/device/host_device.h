// What the two compilers of device code, nvcc and the host's in the emulation, write differently.
#pragma once

// A mark for the small functions that the host and the device compile from one text, so that one test is for both.
#ifdef __CUDACC__
#define GHOSTSHARD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GHOSTSHARD_HOST_DEVICE inline __attribute__((always_inline))
#endif

// Before a loop: how many of its rounds may be written out. More takes registers that are better used elsewhere.
#define GHOSTSHARD_PRAGMA(text) _Pragma(#text)
#ifdef __CUDACC__
#define GHOSTSHARD_UNROLL(rounds) GHOSTSHARD_PRAGMA(unroll(rounds))
#else
#define GHOSTSHARD_UNROLL(rounds)
#endif
