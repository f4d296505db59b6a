#include "fsdp/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <cmath>

#include "fsdp/optimizer/elementwise.h"

namespace ghostshard::fsdp {
namespace {

using Tensors = std::vector<at::Tensor>;

class Sgd final : public ElementwiseOptimizer {
 public:
  Sgd(ShardedModel& model, const SgdOptions& options, StatesAt states, const Chosen& chosen)
      : ElementwiseOptimizer(model, options.weight_decay, states, chosen,
                             options.momentum > 0 ? Kinds{"velocity"} : Kinds{}),
        momentum_(options.momentum) {
    require(momentum_ >= 0 && momentum_ < 1, "momentum must be at least 0 and below 1", momentum_);
  }
  std::string rule() const override { return "sgd"; }

 private:
  void update(const UpdateSlices& now, double learning_rate, double weight_decay) override {
    at::_fused_sgd_(now.weights, now.gradients, momentum_ > 0 ? now.states[0] : Tensors(), weight_decay, momentum_,
                    learning_rate, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/steps() == 1);
  }

  double momentum_;
};

class AdamW final : public ElementwiseOptimizer {
 public:
  AdamW(ShardedModel& model, const AdamWOptions& options, StatesAt states, const Chosen& chosen)
      : ElementwiseOptimizer(model, options.weight_decay, states, chosen, {"first_moment", "second_moment"}),
        options_(options) {
    require(options.beta1 >= 0 && options.beta1 < 1, "beta1 must be at least 0 and below 1", options.beta1);
    require(options.beta2 >= 0 && options.beta2 < 1, "beta2 must be at least 0 and below 1", options.beta2);
    require(options.epsilon > 0, "epsilon must be positive", options.epsilon);
  }
  std::string rule() const override { return "adamw"; }

 private:
  void update(const UpdateSlices& now, double learning_rate, double weight_decay) override {
    const Tensors counts(now.weights.size(), at::full({}, static_cast<double>(steps()), now.weights.front().options()));
    at::_fused_adamw_(now.weights, now.gradients, now.states[0], now.states[1],
                      /*max_exp_avg_sqs=*/at::TensorList(), counts, learning_rate, options_.beta1, options_.beta2,
                      weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }

  AdamWOptions options_;
};

}  // namespace

void Optimizer::set_error_variance(double variance) {
  require(variance >= 0 && std::isfinite(variance), "the gradients' error variance must be finite and >= 0", variance);
}

std::unique_ptr<Optimizer> make_sgd(ShardedModel& model, const SgdOptions& options, StatesAt states,
                                    const Chosen& chosen) {
  return std::make_unique<Sgd>(model, options, states, chosen);
}

std::unique_ptr<Optimizer> make_adamw(ShardedModel& model, const AdamWOptions& options, StatesAt states,
                                      const Chosen& chosen) {
  return std::make_unique<AdamW>(model, options, states, chosen);
}

}  // namespace ghostshard::fsdp
