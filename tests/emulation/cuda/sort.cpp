// Replaces kernels/device/sort.cu, whose library is not emulated. It asks for scratch and fills it, so that
// AddressSanitizer finds a caller that gives too little; it refuses keys whose upper bits CUB would ignore.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/embedding_norm/device.h"
#include "tests/emulation/cuda/executor.h"
#include "tests/emulation/device/memory.h"

namespace ghostshard::kernels::device {

size_t sort_scratch_bytes(int64_t count) { return static_cast<size_t>(8 * count + 100); }

void sort_pairs(const LookupOrder& order, int64_t count, int64_t bound, Stream /*stream*/) {
  if (order.scratch_bytes < sort_scratch_bytes(count)) {
    throw emulation::Fault("sort_pairs: less scratch than asked for");
  }
  const emulation::OpenDeviceMemory open;
  std::memset(order.scratch, 0xff, order.scratch_bytes);
  std::vector<int64_t> by(static_cast<size_t>(count));
  std::iota(by.begin(), by.end(), int64_t{0});
  for (const int64_t k : by) {
    if (order.keys[k] < 0 || order.keys[k] >= bound) throw emulation::Fault("sort_pairs: a key beyond the bound");
  }
  std::ranges::stable_sort(by, {}, [&](int64_t k) { return order.keys[k]; });
  for (size_t k = 0; k < by.size(); ++k) {
    order.sorted_keys[k] = order.keys[by[k]];
    order.sorted_rows[k] = order.rows[by[k]];
  }
}

}  // namespace ghostshard::kernels::device
