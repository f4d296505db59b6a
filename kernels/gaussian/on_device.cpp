// Noise for a tensor on a device.
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/gaussian/device.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels::on_device {

void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, const at::Tensor& out,
                  int64_t offset, int64_t elements) {
  constexpr const char* op = "add_gaussian";
  const auto count = static_cast<uint64_t>(elements);
  require(std::isfinite(scale) && scale >= 0, op, ": scale must be finite and >= 0; got ", scale);
  require(count == 0 || first <= std::numeric_limits<uint64_t>::max() - (count - 1), op,
          ": first + count must be at most 2^64; got first = ", first, ", count = ", count);
  ChaChaKeyWords words;
  static_assert(sizeof(words) == std::tuple_size_v<ChaChaKey>);
  std::memcpy(words.word, key.data(), sizeof words);
  const c10::DeviceGuard guard(out.device());
  device::add_gaussian(words, parameter, first, scale, out.mutable_data_ptr<float>() + offset, count,
                       device::current_stream(out));
}

}  // namespace ghostshard::kernels::on_device
