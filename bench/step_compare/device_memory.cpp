#include "bench/step_compare/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

namespace ghostshard::gpt2 {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;

Stat allocated(at::Device device) {
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
}

}  // namespace

// The allocator knows its devices once LibTorch has begun to use them.
OwnMemory::OwnMemory(at::Device device) : device_(device) {
  if (!device_.is_cpu()) at::globalContext().lazyInitDevice(device_.type());
}

void OwnMemory::begin() {
  if (device_.is_cpu()) return;
  before_ = allocated(device_).current;
  at::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

void OwnMemory::end() {
  if (device_.is_cpu()) return;
  const Stat now = allocated(device_);
  peak_ = std::max(peak_, own_ + now.peak - before_);
  own_ += now.current - before_;
}

}  // namespace ghostshard::gpt2
