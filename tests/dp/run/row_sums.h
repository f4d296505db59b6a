// A model of one matrix for tests of whole runs: y = x Wᵀ with x all ones, a unit's loss is the sum of its row of y.
// Every unit's gradient is all ones, of norm sqrt(12).
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <span>

#include "dp/recording/layers.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::tests {

struct RowSums {
  explicit RowSums(fsdp::Mesh& mesh, float first = 0.0F)
      : model(mesh, {{.name = "block", .parameters = {{"weight", {3, 4}}}}}) {
    at::Tensor start = at::zeros({3, 4});
    start[0][0] = first;
    model.set_parameter(model.parameter("weight"), start);
  }
  at::Tensor loss(std::span<const int64_t> units, const dp::RecorderPtr& recorder) {
    const auto count = static_cast<int64_t>(units.size());
    const auto rows = std::make_shared<kernels::Segments>(kernels::Segments::even(count, 1));
    const dp::LinearUse use{.weight = &model.parameter("weight")};
    return fsdp::run_block(model, 0, -1, -1, at::ones({count, 4}),
                           [&](const at::Tensor& x) { return linear(use, x, rows, recorder); })
        .sum();
  }
  fsdp::ShardedModel model;
};

}  // namespace ghostshard::tests
