#include "dp/planning/memory_budget.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "dp/planning/host_memory_left.h"

namespace ghostshard::dp {
namespace {

// Part of the free memory that a plan may count on. The rest is for what the count leaves out: libraries, messages in
// flight, fragments, and other programs that grow.
constexpr double kUsable = 0.8;
constexpr double kMebibyte = 1 << 20;

int64_t ranks_of_host(const fsdp::Mesh& mesh) {
  // Set by every launcher that starts several ranks on a host.
  const char* set = std::getenv("LOCAL_WORLD_SIZE");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  const std::string text = set == nullptr ? "" : set;
  int64_t ranks = 0;
  std::from_chars(text.data(), text.data() + text.size(), ranks);
  return ranks > 0 ? ranks : mesh.world_size();
}

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 10
// LibTorch 2.9 does not say what is free on a device: plans there are bound by a given budget or by 1.5 times a plain
// step.
double free_bytes_of_device(c10::DeviceIndex /*device*/) { return std::numeric_limits<double>::infinity(); }
#else
double free_bytes_of_device(c10::DeviceIndex device) {
  try {
    return static_cast<double>(at::accelerator::getMemoryInfo(device).first);
  } catch (const c10::Error&) {  // an allocator that cannot tell
    return std::numeric_limits<double>::infinity();
  }
}
#endif

double free_bytes(const fsdp::Mesh& mesh) {
  if (mesh.device().is_cpu()) return host_memory_left() / static_cast<double>(ranks_of_host(mesh));
  return free_bytes_of_device(mesh.device().index());
}

}  // namespace

MemoryBudget MemoryBudget::parse(const std::string& text) {
  MemoryBudget budget;
  if (text.empty()) return budget;
  const bool factor = text.back() == 'x';
  const char* const end = text.data() + text.size() - (factor ? 1 : 0);
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value) || !(value > 0)) {
    throw std::invalid_argument(
        "a memory budget must be a number of MiB such as 600, or of steps without privacy such as 1.05x, finite and "
        "> 0, got '" +
        text + "'");
  }
  (factor ? budget.times_plain : budget.bytes) = factor ? value : value * kMebibyte;
  return budget;
}

double memory_room(fsdp::Mesh& mesh) {
  // In MiB, negative, so that the greatest of all is the least room.
  constexpr double kUnknown = 0x1p62;
  const double mine = std::min(kUsable * free_bytes(mesh) / kMebibyte, kUnknown);
  const at::Tensor least = at::full({1}, -static_cast<int64_t>(mine), at::kLong);
  if (mesh.world_size() > 1) mesh.control().all_reduce_max(least);
  const auto found = static_cast<double>(-least.item<int64_t>());
  return found < kUnknown ? found * kMebibyte : std::numeric_limits<double>::infinity();
}

}  // namespace ghostshard::dp
