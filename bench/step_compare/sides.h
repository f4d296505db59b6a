// The two sides of step_compare: each has one model, takes one step at a time and reports its time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bench/step_compare/shape.h"
#include "bench/step_compare/stopwatch.h"
#include "dp/mechanism/optimizer.h"
#include "dp/mechanism/plan.h"
#include "dp/run/nonprivate.h"
#include "examples/gpt2/step_model.h"

namespace ghostshard::gpt2 {

// A batch of random tokens, on the device.
std::vector<TokenBatch> random_batches(const Shape& shape, const fsdp::Mesh& mesh);

// One plan for both sides, which gather alike. A collective; on a device the costs of a step are measured.
PlannedStep planned(fsdp::Mesh& mesh, const Shape& shape);

class PrivateSide {
 public:
  PrivateSide(fsdp::Mesh& mesh, const Shape& shape, const PlannedStep& step);
  Stopwatch step(const std::vector<TokenBatch>& batches);
  int64_t parameters() { return model_.parameters().parameter_count(); }

 private:
  dp::RunKey key_;
  dp::DpPlan plan_;
  Gpt2 model_;
  dp::Clipper clipper_;
  dp::GaussianMechanism mechanism_;
  dp::PrivateOptimizer optimizer_;
  int64_t next_ = 0;
};

class PlainSide {
 public:
  PlainSide(fsdp::Mesh& mesh, const Shape& shape, const PlannedStep& step);
  Stopwatch step(const std::vector<TokenBatch>& batches);
  int64_t parameters() { return model_.parameters().parameter_count(); }

 private:
  Gpt2 model_;
  dp::PlainAccumulator accumulator_;
  std::unique_ptr<fsdp::Optimizer> optimizer_;
};

}  // namespace ghostshard::gpt2
