// Noise for a tensor on a device.
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/gaussian/device.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels::on_device {

void add_gaussian(const ChaChaKey& key, std::span<const GaussianPart> parts, float scale, const at::Tensor& out) {
  constexpr const char* op = "add_gaussian";
  require(std::isfinite(scale) && scale >= 0, op, ": scale must be finite and >= 0; got ", scale);
  std::vector<device::GaussianRange> ranges;
  ranges.reserve(parts.size());
  for (const auto& [parameter, first, offset, elements] : parts) {
    const auto count = static_cast<uint64_t>(elements);
    require(count == 0 || first <= std::numeric_limits<uint64_t>::max() - (count - 1), op,
            ": first + count must be at most 2^64; got first = ", first, ", count = ", count);
    ranges.push_back({parameter, first, out.mutable_data_ptr<float>() + offset, count});
  }
  ChaChaKeyWords words;
  static_assert(sizeof(words) == std::tuple_size_v<ChaChaKey>);
  std::memcpy(words.word, key.data(), sizeof words);
  const c10::DeviceGuard guard(out.device());
  device::add_gaussian(words, ranges, scale, device::current_stream(out));
}

}  // namespace ghostshard::kernels::on_device
