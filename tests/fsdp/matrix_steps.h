// A model of a few matrices and steps on it with gradients that follow from parameter and step alone: what optimizers
// of whole matrices are compared by, on any mesh.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/granule.h"
#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {

using Weights = std::map<std::string, at::Tensor>;

inline constexpr double kRate = 0.02;

inline at::Tensor random(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::dtype(at::kDouble)).to(type);
}

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).norm() / b.to(at::kDouble).norm()).item<double>();
}

// "table" is no matrix of theirs, nor are vectors and what is frozen.
inline std::vector<BlockSpec> some_blocks(const std::optional<Granule>& granule = std::nullopt) {
  return {{"a",
           {{.name = "a.qkv", .shape = {24, 72}, .split = {.extent = 1, .sections = 3}, .granule = granule},
            {.name = "a.bias", .shape = {72}},
            {.name = "a.frozen", .shape = {5, 6}, .trainable = false},
            {.name = "a.up", .shape = {24, 40}, .granule = granule}}},
          {"b", {{.name = "b.down", .shape = {40, 24}, .granule = granule}, {.name = "b.scale", .shape = {24}}}},
          {"end", {{.name = "table", .shape = {50, 24}}}}};
}
inline bool is_matrix(const Parameter& parameter) { return parameter.name() != "table"; }

inline at::Tensor start_of(const Parameter& parameter) { return random(parameter.whole_shape(), 50 + parameter.id()); }
inline at::Tensor gradient_of(const Parameter& parameter, int64_t step) {
  return random(parameter.whole_shape(), 1000 * static_cast<uint64_t>(step + 1) + parameter.id()).mul_(0.01);
}

inline void take_steps(ShardedModel& model, Optimizer& optimizer, int64_t from, int64_t to, double rate = kRate) {
  for (int64_t step = from; step < to; ++step) {
    ShardBuffers gradient(model);
    for (const auto& group : model.groups()) {
      if (!group->trainable()) continue;
      gradient.shard(*group).fill_(std::numeric_limits<float>::quiet_NaN());  // padding, which nothing may read
      for (const OwnedRange& range : group->owned()) {
        const Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
        gradient.shard(*group)
            .narrow(0, range.shard_offset, range.count)
            .copy_(gradient_of(parameter, step).view({-1}).narrow(0, range.first, range.count));
      }
    }
    optimizer.step(gradient, rate);
  }
}

using Make = std::function<std::unique_ptr<Optimizer>(ShardedModel&)>;

inline Weights weights_after(const MeshShape& shape, const std::vector<BlockSpec>& blocks, const Make& make,
                             int64_t steps, double rate = kRate) {
  Weights weights;
  std::mutex mutex;
  tests::run_mesh(shape, [&](Mesh& mesh) {
    ShardedModel model(mesh, blocks);
    for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, start_of(*parameter));
    const auto optimizer = make(model);
    take_steps(model, *optimizer, 0, steps, rate);
    Weights mine;
    for (const auto& parameter : model.parameters()) mine[parameter->name()] = model.whole_parameter(*parameter);
    const std::lock_guard lock(mutex);
    weights = mine;
  });
  return weights;
}

}  // namespace ghostshard::fsdp
