// A small model through a session, and its clipped sums by plain autograd.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "dp/run/session.h"
#include "fsdp/saved_object.h"

namespace ghostshard::dp {

inline constexpr double kClipNorm = 1.5;

// A model of each kind of layer that the session has, with weights of its own: table, norm, two uses of one matrix, a
// head stored the other way round, a scale that somebody else instantiates.
inline constexpr int64_t kVocabulary = 11, kWidth = 6, kLength = 5, kClasses = 3;
enum Id : int64_t { kTable, kScale, kShift, kMatrix, kBias, kHead, kGain, kCount };

inline std::vector<fsdp::BlockSpec> some_blocks() {
  return {{"body",
           {{"table", {kVocabulary, kWidth}},
            {"scale", {kWidth}},
            {"shift", {kWidth}},
            {"matrix", {kWidth, kWidth}},
            {"bias", {kWidth}}}},
          {"head", {{"head", {kWidth, kClasses}}, {"gain", {kWidth}}}}};
}

inline std::vector<at::Tensor> some_weights(at::ScalarType dtype) {
  std::vector<at::Tensor> weights;
  for (const auto& block : some_blocks()) {
    for (const auto& parameter : block.parameters) {
      const at::Tensor index = at::arange(c10::multiply_integers(parameter.shape), at::kDouble);
      weights.push_back(
          (index * 0.7 + static_cast<double>(weights.size())).sin().mul(0.8).view(parameter.shape).to(dtype));
    }
  }
  return weights;
}

// One row for each of `units` units, from `first` on.
inline at::Tensor ids_of(int64_t first, int64_t units) {
  const at::Tensor unit = at::arange(first, first + units, at::kLong).unsqueeze(1);
  return (unit * 3 + at::arange(kLength, at::kLong) * 7).remainder(kVocabulary);
}

// By plain autograd, one unit at a time in float64: the sum of clipped gradients.
inline std::vector<at::Tensor> clipped_sum_of_oracle(const std::vector<int64_t>& units, double clip_norm) {
  std::vector<at::Tensor> sum;
  for (const at::Tensor& w : some_weights(at::kDouble)) sum.push_back(at::zeros_like(w));
  for (const int64_t unit : units) {
    auto w = some_weights(at::kDouble);
    for (at::Tensor& each : w) each.set_requires_grad(true);
    at::Tensor x = at::embedding(w[kTable], ids_of(unit, 1));
    x = at::layer_norm(x, {kWidth}, w[kScale], w[kShift], 1e-5);
    x = at::linear(x, w[kMatrix], w[kBias]).tanh();
    x = at::linear(x, w[kMatrix], w[kBias]).tanh() * w[kGain];
    at::matmul(x, w[kHead]).square().sum().backward();
    double squared = 0;
    for (const at::Tensor& each : w) squared += each.grad().square().sum().item<double>();
    const double factor = std::min(1.0, clip_norm / std::sqrt(squared));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * w[i].grad();
  }
  return sum;
}

// The gain, as another language would record it: a node whose backward instantiates its gradients.
struct GainFunction : torch::autograd::Function<GainFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gain,
                            Session* session) {
    ctx->save_for_backward({x, gain});
    fsdp::save_object(ctx, fsdp::borrowed(*session));
    session->count_use(kGain);
    return x * gain;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto session = fsdp::saved_object<Session>(ctx);
    session->instantiated(session->tape(), kGain, (saved[0] * grads[0]).sum(1));
    return {grads[0] * saved[1], {}, {}};
  }
};

inline void forward_and_backward(Session& session, const std::vector<at::Tensor>& w, int64_t first, int64_t units) {
  session.begin_microbatch(units);
  at::Tensor x = session.embedding(kTable, ids_of(first, units), w[kTable], -1);
  x = session.layer_norm(kScale, kShift, x, 1e-5, w[kScale], w[kShift]);
  x = session.linear(kMatrix, kBias, false, x, w[kMatrix], w[kBias]).tanh();
  x = session.linear(kMatrix, kBias, false, x, w[kMatrix], w[kBias]).tanh();
  x = GainFunction::apply(x, w[kGain], &session);
  const at::Tensor loss = session.linear(kHead, -1, true, x, w[kHead], std::nullopt).square().sum();
  loss.backward({}, /*retain_graph=*/session.takes_two_passes());
  if (session.second_pass()) loss.backward();
  session.clip();
}

}  // namespace ghostshard::dp
