// The part of SGD and AdamW around their rules, which act on each element alone: checks, waits for peers' gathers, the
// two halves of the parameters (those that decay, and the others), states, and where they are.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/optimizer.h"
#include "fsdp/optimizer/host_update.h"
#include "fsdp/optimizer/owned_slices.h"

namespace ghostshard::fsdp {

// std::invalid_argument with the rule and the value unless it holds.
void require(bool holds, const char* rule, double found);

class ElementwiseOptimizer : public Optimizer {
 public:
  void step(const ShardBuffers& gradient, double learning_rate) final;

  int64_t steps() const final { return steps_; }
  void set_steps(int64_t steps) final;
  std::vector<std::string> kinds() const final { return kinds_; }
  bool keeps(const std::string& kind, const Parameter& parameter) const final;
  at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) final;
  void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range, const at::Tensor& values) final;
  int64_t state_bytes() const final;

 protected:
  using Kinds = std::vector<std::string>;
  ElementwiseOptimizer(ShardedModel& model, double weight_decay, StatesAt states, const Chosen& chosen, Kinds kinds);
  // now.states: in the order of kinds.
  virtual void update(const UpdateSlices& now, double learning_rate, double weight_decay) = 0;

 private:
  // Of master weights that are rounded, each range of a parameter by itself.
  void step_by_range(const ShardBuffers& gradient, double learning_rate);

  struct Half {
    OwnedSlices slices;
    double weight_decay;
    std::vector<at::Tensor> states;  // by kind: float32 [slices.elements()]
  };
  ShardedModel& model_;
  Chosen chosen_;
  Kinds kinds_;
  std::optional<HostUpdate> host_;
  std::vector<Half> halves_;
  int64_t steps_ = 0;
};

}  // namespace ghostshard::fsdp
