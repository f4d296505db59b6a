// The one operation that comes from a library: CUB's radix sort, stable and independent of how blocks are scheduled.
#include <cub/device/device_radix_sort.cuh>

#include <bit>
#include <cstdint>

#include "kernels/device/launch.cuh"
#include "kernels/embedding_norm/device.h"

namespace ghostshard::kernels::device {
namespace {

cudaError_t sort(void* scratch, size_t& scratch_bytes, const LookupOrder& order, int64_t count, int bits,
                 Stream stream) {
  return cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, order.keys, order.sorted_keys, order.rows,
                                         order.sorted_rows, count, 0, bits, stream);
}

}  // namespace

size_t sort_scratch_bytes(int64_t count) {
  size_t bytes = 0;
  check(sort(nullptr, bytes, {}, count, 64, nullptr), "SortPairs (size of its scratch)");
  return bytes;
}

void sort_pairs(const LookupOrder& order, int64_t count, int64_t bound, Stream stream) {
  size_t bytes = order.scratch_bytes;
  // Keys are below the bound: the bits above it are all 0.
  check(sort(order.scratch, bytes, order, count, std::bit_width(static_cast<uint64_t>(bound)), stream), "SortPairs");
}

}  // namespace ghostshard::kernels::device
