#include "fsdp/optimizer_groups.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "fsdp/optimizer/elementwise.h"

namespace ghostshard::fsdp {
namespace {

class JoinedOptimizers final : public Optimizer {
 public:
  JoinedOptimizers(const ShardedModel& model, std::vector<OptimizerGroup> groups) : groups_(std::move(groups)) {
    if (groups_.empty()) throw std::invalid_argument("there must be at least one group of parameters");
    for (const OptimizerGroup& group : groups_) {
      require(group.rate > 0 && std::isfinite(group.rate), "a group's learning rate must be finite and positive",
              group.rate);
    }
    for (const auto& parameter : model.parameters()) {
      if (!parameter->trainable()) continue;
      const auto owners = std::count_if(groups_.begin(), groups_.end(),
                                        [&](const OptimizerGroup& group) { return group.parameters(*parameter); });
      if (owners == 1) continue;
      throw std::invalid_argument("parameter '" + parameter->name() + "' must belong to one group, belongs to " +
                                  std::to_string(owners));
    }
  }

  void step(const ShardBuffers& gradient, double learning_rate) override {
    for (const OptimizerGroup& group : groups_) group.optimizer->step(gradient, learning_rate * group.rate);
  }
  void set_error_variance(double variance) override {
    for (const OptimizerGroup& group : groups_) group.optimizer->set_error_variance(variance);
  }

  std::string rule() const override {
    std::string rules;
    for (const OptimizerGroup& group : groups_) {
      if (!rules.empty()) rules += '+';
      rules += group.optimizer->rule();
    }
    return rules;
  }
  int64_t steps() const override { return groups_.front().optimizer->steps(); }
  void set_steps(int64_t steps) override {
    for (const OptimizerGroup& group : groups_) group.optimizer->set_steps(steps);
  }
  std::vector<std::string> kinds() const override {
    std::vector<std::string> all;
    for (const OptimizerGroup& group : groups_) {
      for (const std::string& kind : group.optimizer->kinds()) {
        if (std::find(all.begin(), all.end(), kind) == all.end()) all.push_back(kind);
      }
    }
    return all;
  }
  bool keeps(const std::string& kind, const Parameter& parameter) const override {
    return parameter.trainable() && optimizer_of(parameter).keeps(kind, parameter);
  }
  at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) override {
    return optimizer_of(group, range).read(kind, group, range);
  }
  void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
             const at::Tensor& values) override {
    optimizer_of(group, range).write(kind, group, range, values);
  }
  std::vector<StateRow> rows() const override {
    std::vector<StateRow> all;
    for (const OptimizerGroup& group : groups_) std::ranges::move(group.optimizer->rows(), std::back_inserter(all));
    return all;
  }
  std::vector<StatePiece> pieces() override {
    std::vector<StatePiece> all;
    for (const OptimizerGroup& group : groups_) std::ranges::move(group.optimizer->pieces(), std::back_inserter(all));
    return all;
  }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const OptimizerGroup& group : groups_) bytes += group.optimizer->state_bytes();
    return bytes;
  }

 private:
  Optimizer& optimizer_of(const Parameter& parameter) const {
    const auto found = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const OptimizerGroup& group) { return group.parameters(parameter); });
    if (found == groups_.end()) throw std::logic_error("parameter '" + parameter.name() + "' belongs to no group");
    return *found->optimizer;
  }
  Optimizer& optimizer_of(const FlatGroup& group, const OwnedRange& range) const {
    return optimizer_of(*group.parameters()[static_cast<size_t>(range.tensor)]);
  }

  std::vector<OptimizerGroup> groups_;
};

}  // namespace

std::unique_ptr<Optimizer> join_optimizers(const ShardedModel& model, std::vector<OptimizerGroup> groups) {
  return std::make_unique<JoinedOptimizers>(model, std::move(groups));
}

}  // namespace ghostshard::fsdp
