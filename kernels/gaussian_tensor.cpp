#include "kernels/gaussian_tensor.h"

#include <utility>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels {

void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out) {
  const int64_t count = out.defined() ? out.numel() : 0;
  add_gaussian(key, parameter, first, scale, std::move(out), 0, count);
}

void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out, int64_t offset,
                  int64_t count) {
  const GaussianPart part{.parameter = parameter, .first = first, .offset = offset, .count = count};
  add_gaussian(key, {&part, 1}, scale, out);
}

void add_gaussian(const ChaChaKey& key, std::span<const GaussianPart> parts, float scale, const at::Tensor& out) {
  constexpr const char* op = "add_gaussian";
  require(out.defined() && out.is_contiguous() && out.scalar_type() == at::kFloat, op,
          ": out must be a contiguous float32 tensor");
  for (const auto& [parameter, first, offset, count] : parts) {
    require(offset >= 0 && count >= 0 && offset <= out.numel() - count, op, ": out must have elements [", offset, ", ",
            offset, " + ", count, "); it has ", out.numel());
  }
  if (device::runs_on_device(out)) return on_device::add_gaussian(key, parts, scale, out);
  for (const auto& [parameter, first, offset, count] : parts) {
    add_gaussian(key, parameter, first, scale, {out.mutable_data_ptr<float>() + offset, static_cast<size_t>(count)});
  }
}

}  // namespace ghostshard::kernels
