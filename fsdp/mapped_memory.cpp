#include "fsdp/mapped_memory.h"

#include <c10/util/accumulate.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "fsdp/mapped_memory/places.h"

namespace ghostshard::fsdp {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;           // places begin and end at multiples: half of a huge page
constexpr int64_t kMappedByHeaps = int64_t{32} << 20;  // bytes; glibc's DEFAULT_MMAP_THRESHOLD_MAX

int64_t pieces_of(int64_t bytes) { return (bytes + kPiece - 1) / kPiece * kPiece; }

class Range {
 public:
  // Never destroyed: tensors may outlive the objects that are destroyed at exit.
  static Range& get() {
    static Range* const range = new Range;
    return *range;
  }

  // nullptr if the range is full or could not be reserved.
  void* take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr) return nullptr;
    const int64_t first = places_.take(bytes);
    if (first < 0) return nullptr;
    if (first + bytes > usable_) {
      if (mprotect(base_ + usable_, static_cast<size_t>(first + bytes - usable_), PROT_READ | PROT_WRITE) != 0) {
        places_.give_back(first, bytes);
        return nullptr;
      }
      madvise(base_ + usable_, static_cast<size_t>(first + bytes - usable_),
              MADV_HUGEPAGE);  // a request: failure is harmless
      usable_ = first + bytes;
    }
    return base_ + first;
  }

  void give_back(void* memory, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!keeps_idle_) madvise(memory, static_cast<size_t>(bytes), MADV_DONTNEED);
    places_.give_back(static_cast<char*>(memory) - base_, bytes);
  }

  void keep_idle(bool keep) {
    const std::lock_guard lock(mutex_);
    keeps_idle_ = keep;
  }

  bool keeps_idle() {
    const std::lock_guard lock(mutex_);
    return keeps_idle_;
  }

  void give_back_idle() {
    const std::lock_guard lock(mutex_);
    for (const auto& [first, size] : places_.free()) {
      const int64_t used_once = std::min(first + size, usable_) - first;
      if (used_once > 0) madvise(base_ + first, static_cast<size_t>(used_once), MADV_DONTNEED);
    }
  }

 private:
  Range() : places_(0) {
    // Reserves addresses only, as many as there is memory. take() makes a place accessible before its first use.
    const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / kPiece * kPiece;
    void* const start =
        mmap(nullptr, static_cast<size_t>(memory), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return;  // NOLINT(performance-no-int-to-ptr): the system's macro
    base_ = static_cast<char*>(start);
    places_ = Places(memory);
  }

  std::mutex mutex_;
  char* base_ = nullptr;
  int64_t usable_ = 0;  // bytes from base_ on that are accessible
  bool keeps_idle_ = true;
  Places places_;
};

// Undefined if the range has no place.
at::Tensor from_range(at::IntArrayRef sizes, const at::TensorOptions& options, int64_t bytes) {
  const int64_t taken = pieces_of(bytes);
  void* const memory = Range::get().take(taken);
  if (memory == nullptr) return {};
  return at::from_blob(
      memory, sizes, [taken](void* given) { Range::get().give_back(given, taken); }, options);
}

}  // namespace

at::Tensor mapped_message(int64_t elements, at::Device device) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  if (bytes >= kPiece && device.is_cpu()) {
    const at::Tensor found = from_range({elements}, at::kFloat, bytes);
    if (found.defined()) return found;
  }
  return at::empty({elements}, at::dtype(at::kFloat).device(device));
}

at::Tensor mapped_zeros(int64_t elements, at::Device device) { return mapped_message(elements, device).zero_(); }

at::Tensor mapped_empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(options.dtype().itemsize());
  if (bytes >= kMappedByHeaps && options.device().is_cpu() && Range::get().keeps_idle()) {
    const at::Tensor found = from_range(sizes, options, bytes);
    if (found.defined()) return found;
  }
  return at::empty(sizes, options);
}

void keep_idle_memory(bool keep) {
  Range::get().keep_idle(keep);
  if (!keep) give_back_idle_memory();
}

void give_back_idle_memory() { Range::get().give_back_idle(); }

}  // namespace ghostshard::fsdp
