#include "fsdp/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <optional>
#include <stdexcept>

#include "fsdp/optimizer/host_update.h"

namespace ghostshard::fsdp {
namespace {

void require(bool holds, const char* rule, double found) {
  if (!holds) throw std::invalid_argument(std::string(rule) + ", got " + std::to_string(found));
}

using Tensors = std::vector<at::Tensor>;

// The owned parts of all parameters that share a weight decay, and buffers laid out like the shards cut in the same
// way.
class OwnedSlices {
 public:
  // decayed: the parameters with two or more extents, or those with one.
  OwnedSlices(const ShardedModel& model, bool decayed) {
    for (const auto& group : model.groups()) {
      if (!group->trainable()) continue;
      int64_t end = -1;  // of the last slice, to join neighbours: fewer, longer slices
      for (const OwnedRange& range : group->owned()) {
        const Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
        if ((parameter.shape().size() >= 2) != decayed) continue;
        if (range.shard_offset == end) {
          places_.back().count += range.count;
        } else {
          places_.push_back({group.get(), range.shard_offset, range.count});
        }
        end = range.shard_offset + range.count;
      }
    }
  }

  Tensors weights() const {
    return cut([](const FlatGroup& group) { return group.shard(); });
  }
  Tensors of(const ShardBuffers& buffers) const {
    return cut([&](const FlatGroup& group) { return buffers.shard(group); });
  }

 private:
  struct Place {
    const FlatGroup* group;
    int64_t offset;
    int64_t count;
  };

  template <typename FlatOf>
  Tensors cut(const FlatOf& flat_of) const {
    Tensors tensors;
    tensors.reserve(places_.size());
    for (const Place& place : places_) tensors.push_back(flat_of(*place.group).narrow(0, place.offset, place.count));
    return tensors;
  }

  std::vector<Place> places_;
};

// The part of every optimizer around its rule: checks, waits for peers' gathers, keeps autograd away, applies the rule
// to both halves.
class ShardOptimizer : public Optimizer {
 public:
  ShardOptimizer(ShardedModel& model, double weight_decay, StatesAt states) : model_(model) {
    if (states == StatesAt::kHost && !model.device().is_cpu()) host_.emplace(model.device());
    require(weight_decay >= 0, "weight_decay must not be negative", weight_decay);
    halves_[0] = {OwnedSlices(model, true), weight_decay};
    halves_[1] = {OwnedSlices(model, false), 0.0};
  }

  void step(const ShardBuffers& gradient, double learning_rate) final {
    require(learning_rate > 0, "learning_rate must be positive", learning_rate);
    const at::NoGradGuard no_grad;
    model_.wait_for_gathers();
    ++steps_;
    for (const Half& half : halves_) {
      UpdateSlices all{.weights = half.slices->weights(), .gradients = half.slices->of(gradient), .states = {}};
      if (all.weights.empty()) continue;
      for (const Slices& own : slices()) all.states.push_back(half.slices->of(*own.buffers));
      const auto rule = [&](const UpdateSlices& now) { update(now, learning_rate, half.weight_decay); };
      host_ ? host_->apply(all, rule) : rule(all);
    }
    model_.weights_changed();
  }

  int64_t steps() const final { return steps_; }
  void set_steps(int64_t steps) final {
    require(steps >= 0, "the number of steps taken must not be negative", static_cast<double>(steps));
    steps_ = steps;
  }

 protected:
  virtual void update(const UpdateSlices& now, double learning_rate, double weight_decay) = 0;
  ShardBuffers own_buffers() const { return ShardBuffers(model_, host_.has_value()); }

 private:
  struct Half {
    std::optional<OwnedSlices> slices;
    double weight_decay = 0.0;
  };
  ShardedModel& model_;
  std::optional<HostUpdate> host_;
  Half halves_[2];
  int64_t steps_ = 0;
};

class Sgd final : public ShardOptimizer {
 public:
  Sgd(ShardedModel& model, const SgdOptions& options, StatesAt states)
      : ShardOptimizer(model, options.weight_decay, states), momentum_(options.momentum) {
    require(momentum_ >= 0 && momentum_ < 1, "momentum must be at least 0 and below 1", momentum_);
    if (momentum_ > 0) velocity_.emplace(own_buffers());
  }
  std::string rule() const override { return "sgd"; }
  std::vector<Slices> slices() override {
    if (!velocity_) return {};
    return {{"velocity", &*velocity_}};
  }

 private:
  void update(const UpdateSlices& now, double learning_rate, double weight_decay) override {
    at::_fused_sgd_(now.weights, now.gradients, velocity_ ? now.states[0] : Tensors(), weight_decay, momentum_,
                    learning_rate, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/steps() == 1);
  }

  double momentum_;
  std::optional<ShardBuffers> velocity_;
};

class AdamW final : public ShardOptimizer {
 public:
  AdamW(ShardedModel& model, const AdamWOptions& options, StatesAt states)
      : ShardOptimizer(model, options.weight_decay, states),
        options_(options),
        first_moment_(own_buffers()),
        second_moment_(own_buffers()) {
    require(options.beta1 >= 0 && options.beta1 < 1, "beta1 must be at least 0 and below 1", options.beta1);
    require(options.beta2 >= 0 && options.beta2 < 1, "beta2 must be at least 0 and below 1", options.beta2);
    require(options.epsilon > 0, "epsilon must be positive", options.epsilon);
  }
  std::string rule() const override { return "adamw"; }
  std::vector<Slices> slices() override {
    return {{"first_moment", &first_moment_}, {"second_moment", &second_moment_}};
  }

 private:
  void update(const UpdateSlices& now, double learning_rate, double weight_decay) override {
    const Tensors counts(now.weights.size(), at::full({}, static_cast<double>(steps()), now.weights.front().options()));
    at::_fused_adamw_(now.weights, now.gradients, now.states[0], now.states[1],
                      /*max_exp_avg_sqs=*/at::TensorList(), counts, learning_rate, options_.beta1, options_.beta2,
                      weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }

  AdamWOptions options_;
  ShardBuffers first_moment_, second_moment_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(ShardedModel& model, const SgdOptions& options, StatesAt states) {
  return std::make_unique<Sgd>(model, options, states);
}

std::unique_ptr<Optimizer> make_adamw(ShardedModel& model, const AdamWOptions& options, StatesAt states) {
  return std::make_unique<AdamW>(model, options, states);
}

}  // namespace ghostshard::fsdp
