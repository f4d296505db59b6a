// A stack of layers y = tanh(x·W), each a block of a sharded model, and plain autograd on the same weights to compare
// with.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/saved_object.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

inline constexpr int64_t kWidth = 6;

// y = tanh(x·W): saves y and the parameter, reads the weights again in backward, and adds the weights' gradient to a
// buffer outside of autograd, as an engine with flat gradient buffers does.
struct TanhLinear : torch::autograd::Function<TanhLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Parameter* weight,
                            at::Tensor gradient, bool fail_backward) {
    const at::Tensor y = x.matmul(weight->value()).tanh();
    context->save_for_backward({x, y});
    save_object(context, borrowed(*weight));
    context->saved_data["gradient"] = gradient;
    context->saved_data["fail"] = fail_backward;
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grad) {
    if (context->saved_data["fail"].toBool()) throw std::runtime_error("backward broke");
    const auto weight = saved_object<const Parameter>(context);
    const auto saved = context->get_saved_variables();
    const at::Tensor inner = grad[0] * (1 - saved[1] * saved[1]);
    if (weight->trainable()) context->saved_data["gradient"].toTensor().add_(saved[0].t().matmul(inner));
    return {inner.matmul(weight->value().t()), {}, {}, {}};
  }
};

// A stack of such layers, each a block; with embedding a table of token rows below them, kept gathered.
struct Stack {
  Stack(Mesh& mesh, std::vector<bool> trainable_layers, bool with_embedding = false)
      : trainable(std::move(trainable_layers)),
        model(mesh, specs(trainable, with_embedding)),
        embedding(with_embedding) {
    const at::Generator generator = at::detail::createCPUGenerator(3);
    for (const auto& parameter : model.parameters()) {
      model.set_parameter(*parameter, at::randn(parameter->shape(), generator));
      whole.push_back(model.whole_parameter(*parameter));
      gradients.push_back(at::zeros(parameter->shape()));
    }
    model.weights_changed();
  }

  static std::vector<BlockSpec> specs(const std::vector<bool>& trainable, bool with_embedding) {
    std::vector<BlockSpec> blocks;
    if (with_embedding) blocks.push_back({"table", {{"table.w", {11, kWidth}}}, Residency::kKeep});
    for (size_t i = 0; i < trainable.size(); ++i) {
      blocks.push_back({"layer" + std::to_string(i), {{"w" + std::to_string(i), {kWidth, kWidth}, trainable[i]}}});
    }
    return blocks;
  }

  int64_t first_layer() const { return embedding ? 1 : 0; }

  at::Tensor forward(at::Tensor x, int64_t fail_forward = -1, int64_t fail_backward = -1) {
    const int64_t blocks = model.block_count();
    for (int64_t u = first_layer(); u < blocks; ++u) {
      const Parameter& weight = *model.parameters()[static_cast<size_t>(u)];
      const auto body = [this, u, &weight, fail_forward, fail_backward](const at::Tensor& in) {
        ++bodies_run;
        if (u == fail_forward) throw std::runtime_error("forward broke");
        return TanhLinear::apply(in, &weight, gradients[static_cast<size_t>(u)], u == fail_backward);
      };
      const int64_t following = u + 1 < blocks ? u + 1 : -1;
      x = run_block(model, u, following, u > first_layer() ? u - 1 : -1, x, body, activations);
    }
    return x;
  }

  // By plain autograd on whole weights.
  std::vector<at::Tensor> expected_gradients(const at::Tensor& x) const {
    std::vector<at::Tensor> weights;
    at::Tensor h = x.detach();
    for (size_t i = 0; i < whole.size(); ++i) {
      weights.push_back(whole[i].detach().clone().requires_grad_());
      h = h.matmul(weights.back()).tanh();
    }
    std::vector<at::Tensor> inputs = weights;
    return torch::autograd::grad({h.sum()}, inputs);
  }

  void expect_no_leases() {
    // Every buffer can be had by every block.
    for (int64_t u = 0; u < model.block_count(); ++u) {
      EXPECT_NO_THROW(const Lease lease(model, u)) << "block " << u;
    }
  }

  Activations activations = Activations::kStore;
  int bodies_run = 0;
  std::vector<bool> trainable;
  ShardedModel model;
  bool embedding;
  std::vector<at::Tensor> whole, gradients;
};

inline at::Tensor input() { return at::linspace(-1, 1, 4 * kWidth).view({4, kWidth}); }

}  // namespace ghostshard::fsdp
