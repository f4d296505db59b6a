#include "kernels/rounded_weights.h"

#include <ATen/Parallel.h>

#include "kernels/device/keyed_rounding.h"
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {

GHOSTSHARD_VECTORISED static void round_all(const float* __restrict values, uint32_t stream, uint64_t first_element,
                                            uint16_t* __restrict stored, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    stored[i] = round_to_bfloat16(values[i], rounding_bits(stream, first_element + static_cast<uint64_t>(i)) >> 16);
  }
}

void round_weights(const at::Tensor& values, uint32_t parameter, int64_t step, uint64_t first_element,
                   const at::Tensor& stored) {
  constexpr const char* op = "round_weights";
  constexpr int64_t kGrain = 1 << 14;  // elements of one task
  require(values.defined() && values.dim() == 1, op, ": values must be flat");
  require_shape(op, "values", values, values.sizes(), at::kFloat, values.device());
  require_shape(op, "stored", stored, values.sizes(), at::kBFloat16, values.device());
  const uint32_t stream = rounding_stream_of(Rounded::kWeights, parameter, step);
  if (device::runs_on_device(values)) return on_device::round_weights(values, stream, first_element, stored);
  const float* const from = values.const_data_ptr<float>();
  auto* const to = reinterpret_cast<uint16_t*>(stored.mutable_data_ptr<at::BFloat16>());
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    round_all(from + begin, stream, first_element + static_cast<uint64_t>(begin), to + begin, end - begin);
  });
}

}  // namespace ghostshard::kernels
