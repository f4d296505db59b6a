#include "tests/emulation/device/pinned.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

namespace ghostshard::emulation {
namespace {

std::mutex guard;  // of everything below

std::map<const char*, size_t, std::greater<>>& ranges() {
  static auto& of_the_program = *new std::map<const char*, size_t, std::greater<>>;
  return of_the_program;
}

struct LateCopy {
  at::Tensor from, to;
};
std::deque<LateCopy> late;
int64_t arrived = 0;

void free_pinned(void* memory) {
  const std::lock_guard lock(guard);
  ranges().erase(static_cast<const char*>(memory));
  c10::GetCPUAllocator()->raw_deallocate(memory);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = c10::GetCPUAllocator()->raw_allocate(bytes);
    const std::lock_guard lock(guard);
    if (memory != nullptr) ranges()[static_cast<const char*>(memory)] = bytes;
    return {memory, memory, &free_pinned, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return allocator;
}

bool is_pinned(const void* memory) {
  const std::lock_guard lock(guard);
  const auto* at = static_cast<const char*>(memory);
  const auto found = ranges().lower_bound(at);  // the last range that begins at or before it
  return found != ranges().end() && at < found->first + found->second;
}

void copy_later(at::Tensor from, const at::Tensor& to) {
  if (to.is_floating_point()) to.fill_(std::numeric_limits<double>::quiet_NaN());
  const std::lock_guard lock(guard);
  late.push_back({std::move(from), to});
}

int64_t copies_so_far() {
  const std::lock_guard lock(guard);
  return arrived + static_cast<int64_t>(late.size());
}

void finish_copies(int64_t count) {
  for (;;) {
    LateCopy next;  // released without the lock, because free_pinned takes it
    {
      const std::lock_guard lock(guard);
      if (arrived >= count || late.empty()) return;
      next = std::move(late.front());
      late.pop_front();
      ++arrived;
    }
    next.to.copy_(next.from);
  }
}

}  // namespace ghostshard::emulation
