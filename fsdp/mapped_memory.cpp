#include "fsdp/mapped_memory.h"

#include <sys/mman.h>

#include <new>

namespace ghostshard::fsdp {
namespace {
constexpr size_t kWorthMapping = size_t{1} << 20;  // bytes; half of a huge page
}  // namespace

at::Tensor mapped_zeros(int64_t elements, at::Device device) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  if (bytes < kWorthMapping || !device.is_cpu()) return at::zeros({elements}, at::dtype(at::kFloat).device(device));
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();  // NOLINT(performance-no-int-to-ptr): the system's macro
  madvise(start, bytes, MADV_HUGEPAGE);             // a wish: fresh pages are most of what a mapping costs
  return at::from_blob(
      start, {elements}, [bytes](void* mapped) { munmap(mapped, bytes); }, at::kFloat);
}

}  // namespace ghostshard::fsdp
