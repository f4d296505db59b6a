#include "fsdp/optimizer/elementwise.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ghostshard::fsdp {

void require(bool holds, const char* rule, double found) {
  if (!holds) throw std::invalid_argument(std::string(rule) + ", got " + std::to_string(found));
}

ElementwiseOptimizer::ElementwiseOptimizer(ShardedModel& model, double weight_decay, StatesAt states,
                                           const Chosen& chosen, Kinds kinds)
    : model_(model),
      chosen_([chosen](const Parameter& p) { return p.trainable() && (!chosen || chosen(p)); }),
      kinds_(std::move(kinds)) {
  if (states == StatesAt::kHost && !model.device().is_cpu()) host_.emplace(model.device());
  if (host_ && model.master_dtype() != at::kFloat) {
    throw std::invalid_argument("states in host memory need master weights in float32, got bfloat16");
  }
  require(weight_decay >= 0, "weight_decay must not be negative", weight_decay);
  const auto options =
      at::dtype(at::kFloat).device(host_ ? at::Device(at::kCPU) : model.device()).pinned_memory(host_.has_value());
  for (const bool decayed : {true, false}) {
    const auto mine = [&](const Parameter& p) { return chosen_(p) && (p.shape().size() >= 2) == decayed; };
    Half half{.slices = {model, mine}, .weight_decay = decayed ? weight_decay : 0.0, .states = {}};
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      half.states.push_back(at::zeros({half.slices.elements()}, options));
    }
    halves_.push_back(std::move(half));
  }
}

void ElementwiseOptimizer::step(const ShardBuffers& gradient, double learning_rate) {
  require(learning_rate > 0, "learning_rate must be positive", learning_rate);
  const at::NoGradGuard no_grad;
  model_.wait_for_gathers();
  ++steps_;
  if (model_.master_dtype() != at::kFloat) return step_by_range(gradient, learning_rate);
  for (const Half& half : halves_) {
    UpdateSlices all{.weights = half.slices.weights(), .gradients = half.slices.of(gradient), .states = {}};
    if (all.weights.empty()) continue;
    for (const at::Tensor& state : half.states) all.states.push_back(half.slices.of(state));
    const auto rule = [&](const UpdateSlices& now) { update(now, learning_rate, half.weight_decay); };
    host_ ? host_->apply(all, rule) : rule(all);
  }
  model_.weights_changed();
}

void ElementwiseOptimizer::step_by_range(const ShardBuffers& gradient, double learning_rate) {
  for (const auto& group : model_.groups()) {
    if (!group->trainable()) continue;
    for (const OwnedRange& range : group->owned()) {
      for (const Half& half : halves_) {
        const int64_t at = half.slices.find(*group, range);
        if (at < 0) continue;
        model_.update_weights(*group, range, steps_, [&](const at::Tensor& weights, int64_t first) {
          const auto piece = [&](const at::Tensor& all, int64_t begin) {
            return std::vector<at::Tensor>{all.narrow(0, begin + first, weights.numel())};
          };
          UpdateSlices now{
              .weights = {weights}, .gradients = piece(gradient.shard(*group), range.shard_offset), .states = {}};
          for (const at::Tensor& state : half.states) now.states.push_back(piece(state, at));
          update(now, learning_rate, half.weight_decay);
        });
      }
    }
  }
  model_.weights_changed();
}

void ElementwiseOptimizer::set_steps(int64_t steps) {
  require(steps >= 0, "the number of steps taken must not be negative", static_cast<double>(steps));
  steps_ = steps;
}

bool ElementwiseOptimizer::keeps(const std::string& kind, const Parameter& parameter) const {
  return chosen_(parameter) && std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end();
}

at::Tensor ElementwiseOptimizer::read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) {
  const auto index = std::find(kinds_.begin(), kinds_.end(), kind) - kinds_.begin();
  for (const Half& half : halves_) {
    const int64_t at = half.slices.find(group, range);
    if (at >= 0) return half.states.at(static_cast<size_t>(index)).narrow(0, at, range.count);
  }
  throw std::logic_error("the optimizer keeps no " + kind + " of this range");
}

void ElementwiseOptimizer::write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
                                 const at::Tensor& values) {
  read(kind, group, range).copy_(values);
}

int64_t ElementwiseOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Half& half : halves_) {
    for (const at::Tensor& state : half.states) bytes += static_cast<int64_t>(state.nbytes());
  }
  return bytes;
}

}  // namespace ghostshard::fsdp
