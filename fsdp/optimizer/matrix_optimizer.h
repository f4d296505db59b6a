// The part of Muon, Shampoo and SOAP around their rules: which parameters are matrices of theirs, AdamW for the others,
// the way of a matrix's gradient to the rank that computes its step and of the step back, and weight decay.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/optimizer.h"
#include "fsdp/optimizer/matrix_exchange.h"
#include "fsdp/optimizer/owned_slices.h"

namespace ghostshard::fsdp {

class MatrixOptimizer : public Optimizer {
 public:
  void step(const ShardBuffers& gradient, double learning_rate) final;

  int64_t steps() const final { return rest_->steps(); }
  void set_steps(int64_t steps) final { rest_->set_steps(steps); }
  // Those of the other parameters. Numbers of an optimizer's own come on top.
  std::vector<std::string> kinds() const override { return rest_->kinds(); }
  bool keeps(const std::string& kind, const Parameter& parameter) const override {
    return rest_->keeps(kind, parameter);
  }
  at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) override {
    return rest_->read(kind, group, range);
  }
  void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
             const at::Tensor& values) override {
    rest_->write(kind, group, range, values);
  }
  int64_t state_bytes() const override { return rest_->state_bytes(); }

 protected:
  struct Setting {
    const char* name;     // for messages
    Chosen matrices;      // among the chosen
    double weight_decay;  // of the matrices
    AdamWOptions adamw;
    std::optional<int64_t> rows;  // of a part of a matrix; none: whole matrices
  };
  // std::invalid_argument unless weight_decay is finite and >= 0, for options as make_adamw does, and for matrices that
  // the model axis cuts.
  MatrixOptimizer(ShardedModel& model, const Setting& setting, const Chosen& chosen);

  // What goes to the part's owner of a range of the gradient, flat [count]. Every operation on it must be rounded by
  // itself, so that no bit depends on where a range begins.
  virtual at::Tensor sent_of(const at::Tensor& gradient, const FlatGroup& group, const OwnedRange& range);
  // On the owner: from what was sent of a part [rows, columns] its step for a learning rate of 1. steps() counts it.
  virtual at::Tensor step_of(const MatrixPart& part, const at::Tensor& sent) = 0;

  const ShardedModel& model() const { return model_; }
  const Chosen& matrices() const { return matrices_; }
  const MatrixExchange& exchange() const { return exchange_; }

 private:
  ShardedModel& model_;
  Chosen matrices_;
  double weight_decay_;
  MatrixExchange exchange_;
  std::unique_ptr<Optimizer> rest_;
};

}  // namespace ghostshard::fsdp
