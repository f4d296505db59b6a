// The release of an empty batch, on any mesh: noise alone.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/dp/single_layer.h"
#include "tests/support/run_on_device.h"

namespace ghostshard::tests {

inline constexpr double kSigma = 1.5;
inline constexpr double kClip = 0.25;
inline constexpr int64_t kExpectedBatch = 4;

inline const std::vector<fsdp::BlockSpec> kUnits = {
    {.name = "first", .parameters = {{"a", {37, 11}}, {"b", {13}}, {"frozen", {5}, false}}},
    {.name = "second", .parameters = {{"c", {64, 33}}, {"d", {7}}}, .residency = fsdp::Residency::kKeep},
    // Cut over a model axis of up to four ranks, by columns in three sections and by rows; "r" is not cut.
    {.name = "third",
     .parameters = {{"by_columns", {11, 36}, true, {.extent = 1, .sections = 3}},
                    {"by_rows", {8, 5}, true, {.extent = 0}},
                    {"r", {9}}}}};

// The release of an empty batch: noise alone, by parameter, times the divisor. streamed: gradients are reduced with
// every microbatch. empty_microbatches: how many of them come before the release. Of several steps the last one's.
inline std::map<std::string, at::Tensor> released_noise(const fsdp::MeshShape& shape, uint8_t key_byte,
                                                        const std::vector<dp::StepId>& steps, bool streamed = false,
                                                        int64_t empty_microbatches = 0,
                                                        const dp::NoiseCorrelation& correlation = {}) {
  std::mutex results;
  std::map<std::string, at::Tensor> whole;
  run_there(shape, [&](fsdp::Mesh& mesh) {
    fsdp::ShardedModel model(mesh, kUnits);
    const auto plan = dp::DpPlan::make({.units = 100,
                                        .expected_batch = kExpectedBatch,
                                        .steps = 10,
                                        .clip_norm = accountant::ClipNorm(kClip),
                                        .noise_bands = correlation.bands,
                                        .noise_chain = correlation.chain,
                                        .noise_blt = correlation.blt,
                                        .noise_on_host = correlation.on_host,
                                        .noise_multiplier = accountant::NoiseMultiplier(kSigma)});
    const auto key = key_of(key_byte);
    auto clipper = plan.clipper(model, {.streamed = std::vector<bool>(streamed ? model.groups().size() : 0, true)});
    auto mechanism = plan.mechanism(model, key, nullptr);
    for (const auto& step : steps) {
      auto sum = clipper.begin(mechanism, step);
      for (int64_t m = 0; m < empty_microbatches; ++m) clipper.add(sum, clipper.record(0));
      const auto gradient = mechanism.release(std::move(sum), step);
      const std::lock_guard lock(results);
      for (const auto& group : model.groups()) {
        if (!group->trainable()) continue;
        const at::Tensor slice = gradient.slices().shard(*group).cpu();
        at::Tensor unowned = at::ones({slice.size(0)}, at::kBool);
        for (const auto& range : group->owned()) {
          const fsdp::Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
          auto [at, fresh] = whole.try_emplace(
              parameter.name(), at::full({parameter.whole_numel()}, std::numeric_limits<float>::quiet_NaN()));
          for (const auto& run : parameter.whole_runs(range.first, range.count)) {
            const at::Tensor mine = slice.narrow(0, range.shard_offset + run.first - range.first, run.count) *
                                    static_cast<double>(kExpectedBatch);
            at::Tensor place = at->second.narrow(0, run.whole_first, run.count);
            EXPECT_TRUE(steps.size() > 1 || place.isnan().all().item<bool>() || at::equal(place, mine))
                << parameter.name() << ": rank " << mesh.rank() << " has other bits than a peer that holds the same";
            place.copy_(mine);
          }
          unowned.narrow(0, range.shard_offset, range.count).fill_(false);
        }
        EXPECT_EQ(slice.masked_select(unowned).count_nonzero().item<int64_t>(), 0) << "noise on padding";
      }
    }
  });
  return whole;
}

inline at::Tensor all_values(const std::map<std::string, at::Tensor>& by_name) {
  std::vector<at::Tensor> parts;
  for (const auto& [name, value] : by_name) parts.push_back(value);
  return at::cat(parts);
}

}  // namespace ghostshard::tests
