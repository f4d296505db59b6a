#include "kernels/quantised_moments.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/stretches.h"
#include "kernels/quantised_moments/host_loops.h"

namespace ghostshard::kernels {
namespace {

constexpr const char* kStep = "adamw_step";
constexpr int64_t kElementsOfOneTask = int64_t{64} * kStretch;

CodeSign second_sign(const AdamWTerms& terms) {
  return terms.error_variance > 0 ? CodeSign::kSigned : CodeSign::kUnsigned;
}

void check_pair(const at::Tensor& weights, const at::Tensor& gradient) {
  require(weights.defined() && weights.dim() == 1, kStep, ": weights must be flat");
  require_shape(kStep, "weights", weights, weights.sizes(), at::kFloat, weights.device());
  require_shape(kStep, "gradient", gradient, weights.sizes(), at::kFloat, weights.device());
}

void check_codes(const char* op, const at::Tensor& codes, const at::Tensor& scales, int64_t elements,
                 at::Device device) {
  require_shape(op, "codes", codes, {elements}, at::kByte, device);
  require_shape(op, "scales", scales, {stretches(elements)}, at::kFloat, device);
}

}  // namespace

AdamWTerms adamw_terms(const AdamWStep& s) {
  const auto rule = [](bool holds, const char* text, double found) {
    require(holds && std::isfinite(found), kStep, ": ", text, "; got ", found);
  };
  rule(s.learning_rate > 0, "the learning rate must be finite and > 0", s.learning_rate);
  rule(s.beta1 >= 0 && s.beta1 < 1, "beta1 must be at least 0 and below 1", s.beta1);
  rule(s.beta2 >= 0 && s.beta2 < 1, "beta2 must be at least 0 and below 1", s.beta2);
  rule(s.epsilon > 0, "epsilon must be finite and > 0", s.epsilon);
  rule(s.weight_decay >= 0, "weight_decay must be finite and >= 0", s.weight_decay);
  rule(s.step >= 1, "steps count from 1", static_cast<double>(s.step));
  rule(s.error_variance >= 0, "the error variance must be finite and >= 0", s.error_variance);
  rule(s.floor >= 0 && (s.floor > 0 || !s.subtract),
       "the floor must be finite and >= 0, and > 0 if the error variance is subtracted", s.floor);
  const auto t = static_cast<double>(s.step);
  const auto single = [](double x) { return static_cast<float>(x); };
  return {.decay = single(1 - s.learning_rate * s.weight_decay),
          .beta1 = single(s.beta1),
          .one_minus_beta1 = single(1 - s.beta1),
          .beta2 = single(s.beta2),
          .one_minus_beta2 = single(1 - s.beta2),
          .error_variance = single(s.error_variance),
          .inverse_second = single(1 / (1 - std::pow(s.beta2, t))),
          .shift = s.subtract ? 0.0F : single(s.error_variance),
          .least = single(s.floor * s.error_variance),
          .step_size = single(s.learning_rate / (1 - std::pow(s.beta1, t))),
          .epsilon = single(s.epsilon)};
}

void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentCodes& moments) {
  check_pair(weights, gradient);
  const int64_t n = weights.numel();
  check_codes(kStep, moments.first, moments.first_scale, n, weights.device());
  check_codes(kStep, moments.second, moments.second_scale, n, weights.device());
  const CodeSign sign = second_sign(terms);
  if (device::runs_on_device(weights)) return on_device::adamw_step(terms, sign, weights, gradient, moments);
  float* const w = weights.mutable_data_ptr<float>();
  const float* const g = gradient.const_data_ptr<float>();
  auto* const first = moments.first.mutable_data_ptr<uint8_t>();
  auto* const second = moments.second.mutable_data_ptr<uint8_t>();
  float* const first_scale = moments.first_scale.mutable_data_ptr<float>();
  float* const second_scale = moments.second_scale.mutable_data_ptr<float>();
  for_each_stretch(n, kStretch, [&](int64_t s, int64_t at, int64_t count) {
    adamw_stretch(terms, sign, w + at, g + at, first + at, first_scale + s, second + at, second_scale + s, count);
  });
}

void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& first,
                const at::Tensor& second) {
  check_pair(weights, gradient);
  require_shape(kStep, "the first moment", first, weights.sizes(), at::kFloat, weights.device());
  require_shape(kStep, "the second moment", second, weights.sizes(), at::kFloat, weights.device());
  if (device::runs_on_device(weights)) return on_device::adamw_step(terms, weights, gradient, first, second);
  float* const w = weights.mutable_data_ptr<float>();
  const float* const g = gradient.const_data_ptr<float>();
  float* const m = first.mutable_data_ptr<float>();
  float* const v = second.mutable_data_ptr<float>();
  at::parallel_for(0, weights.numel(), kElementsOfOneTask, [&](int64_t begin, int64_t end) {
    adamw_elements(terms, w + begin, g + begin, m + begin, v + begin, end - begin);
  });
}

uint32_t rounding_stream(uint32_t parameter, int64_t step) {
  return rounding_stream_of(Rounded::kMoments, parameter, step);
}

void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentHalves& moments) {
  check_pair(weights, gradient);
  require_shape(kStep, "the first moment", moments.first, weights.sizes(), at::kBFloat16, weights.device());
  require_shape(kStep, "the second moment", moments.second, weights.sizes(), at::kBFloat16, weights.device());
  if (device::runs_on_device(weights)) return on_device::adamw_step(terms, weights, gradient, moments);
  float* const w = weights.mutable_data_ptr<float>();
  const float* const g = gradient.const_data_ptr<float>();
  uint16_t* const m = halves_of(moments.first);
  uint16_t* const v = halves_of(moments.second);
  at::parallel_for(0, weights.numel(), kElementsOfOneTask, [&](int64_t begin, int64_t end) {
    adamw_halves(terms, w + begin, g + begin, m + begin, v + begin, moments.stream,
                 moments.first_element + static_cast<uint64_t>(begin), end - begin);
  });
}

void encode_moments(const at::Tensor& values, CodeSign sign, const at::Tensor& codes, const at::Tensor& scales) {
  constexpr const char* op = "encode_moments";
  require(values.defined() && values.dim() == 1, op, ": values must be flat");
  require_shape(op, "values", values, values.sizes(), at::kFloat);
  check_codes(op, codes, scales, values.numel(), at::kCPU);
  const float* const from = values.const_data_ptr<float>();
  auto* const to = codes.mutable_data_ptr<uint8_t>();
  float* const scale = scales.mutable_data_ptr<float>();
  for_each_stretch(values.numel(), kStretch, [&](int64_t s, int64_t at, int64_t count) {
    encode_stretch(from + at, sign, to + at, scale + s, count);
  });
}

void decode_moments(const at::Tensor& codes, const at::Tensor& scales, CodeSign sign, const at::Tensor& values) {
  constexpr const char* op = "decode_moments";
  require(values.defined() && values.dim() == 1, op, ": values must be flat");
  require_shape(op, "values", values, values.sizes(), at::kFloat);
  check_codes(op, codes, scales, values.numel(), at::kCPU);
  const auto* const from = codes.const_data_ptr<uint8_t>();
  const float* const scale = scales.const_data_ptr<float>();
  float* const to = values.mutable_data_ptr<float>();
  for_each_stretch(values.numel(), kStretch, [&](int64_t s, int64_t at, int64_t count) {
    decode_stretch(from + at, scale[s], sign, to + at, count);
  });
}

}  // namespace ghostshard::kernels
