// A mark for the small functions that the host and the device compile from one text, so that one test is for both.
#pragma once

#ifdef __CUDACC__
#define GHOSTSHARD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GHOSTSHARD_HOST_DEVICE inline __attribute__((always_inline))
#endif
