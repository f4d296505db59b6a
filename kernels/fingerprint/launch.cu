// Fingerprints: the launches of the kernels in kernels.cuh.
#include "kernels/fingerprint/kernels.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/fingerprint/device.h"

namespace ghostshard::kernels::device {

int64_t fingerprint_chunks(int64_t bytes) { return ceil_div(bytes, kFingerprintChunkBytes); }

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes sums
void fingerprint_chunks_of(const void* data, int64_t bytes, uint64_t tensor, uint64_t* sums, Stream stream) {
  launch("sum_chunks", sum_chunks,
         {.work = fingerprint_chunks(bytes), .threads = kFingerprintThreads, .shared_bytes = sizeof(FingerprintSums)},
         stream, static_cast<const unsigned char*>(data), bytes, tensor, sums);
}

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes whole
void fingerprint_join(const uint64_t* sums, int64_t count, uint64_t* whole, Stream stream) {
  launch("join_chunks", join_chunks,
         {.work = 1, .threads = kFingerprintThreads, .shared_bytes = sizeof(FingerprintSums)}, stream, sums, count,
         whole);
}

}  // namespace ghostshard::kernels::device
