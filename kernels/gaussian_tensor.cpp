#include "kernels/gaussian_tensor.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/device/placement.h"
#include "kernels/gaussian/device.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels {

void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out) {
  const int64_t count = out.defined() ? out.numel() : 0;
  add_gaussian(key, parameter, first, scale, std::move(out), 0, count);
}

void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out, int64_t offset,
                  int64_t elements) {
  constexpr const char* op = "add_gaussian";
  require(out.defined() && out.is_contiguous() && out.scalar_type() == at::kFloat, op,
          ": out must be a contiguous float32 tensor");
  require(offset >= 0 && elements >= 0 && offset <= out.numel() - elements, op, ": out must have elements [", offset,
          ", ", offset, " + ", elements, "); it has ", out.numel());
  const auto count = static_cast<uint64_t>(elements);
  float* const values = out.mutable_data_ptr<float>() + offset;
  if (!device::runs_on_device(out)) {
    return add_gaussian(key, parameter, first, scale, {values, count});
  }
  require(std::isfinite(scale) && scale >= 0, op, ": scale must be finite and >= 0; got ", scale);
  require(count == 0 || first <= std::numeric_limits<uint64_t>::max() - (count - 1), op,
          ": first + count must be at most 2^64; got first = ", first, ", count = ", count);
  ChaChaKeyWords words;
  static_assert(sizeof(words) == std::tuple_size_v<ChaChaKey>);
  std::memcpy(words.word, key.data(), sizeof words);
  const c10::DeviceGuard guard(out.device());
  device::add_gaussian(words, parameter, first, scale, values, count, device::current_stream(out));
}

}  // namespace ghostshard::kernels
