// An optimizer that accepts private gradients and nothing else.
#pragma once

#include <memory>
#include <utility>

#include "dp/mechanism/private_gradient.h"
#include "fsdp/optimizer.h"

namespace ghostshard::dp {

class PrivateOptimizer {
 public:
  explicit PrivateOptimizer(std::unique_ptr<fsdp::Optimizer> optimizer) : optimizer_(std::move(optimizer)) {}
  void step(PrivateGradient&& gradient, double learning_rate) {
    const PrivateGradient consumed = std::move(gradient);
    optimizer_->step(consumed.slices(), learning_rate);
  }
  // For checkpoints: the state follows from private gradients alone.
  fsdp::OptimizerState& state() { return *optimizer_; }

 private:
  std::unique_ptr<fsdp::Optimizer> optimizer_;
};

}  // namespace ghostshard::dp
