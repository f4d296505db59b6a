// One ghost layer whose rows and output gradients a test chooses: loss = sum(y∘R) makes R the output gradient.
#pragma once

#include <ATen/ATen.h>

#include "dp/mechanism/plan.h"
#include "dp/recording/layers.h"
#include "dp/run/microbatch.h"
#include "fsdp/sharded_model.h"
#include "tests/support/device_mesh.h"
#include "tests/support/keys.h"

namespace ghostshard::tests {

inline dp::DpPlan plan_without_noise(int64_t units, double clip_norm) {
  return dp::DpPlan::make({.units = units,
                           .expected_batch = units,
                           .steps = 1000,
                           .clip_norm = accountant::ClipNorm(clip_norm),
                           .noise_multiplier = accountant::NoiseMultiplier(1e-30)});
}

// Rows whose contributions to a unit's gradient cancel.
struct CancellingCase {
  const char* name;
  dp::RecordingChoice way;
  double magnitude;  // of the rows
  double residue;    // the part that is left after they cancel, relative
  at::ScalarType dtype = at::kFloat;
};
inline void PrintTo(const CancellingCase& c, std::ostream* out) { *out << c.name; }

struct SingleLinear {
  SingleLinear(fsdp::Mesh& mesh, int64_t inputs, int64_t outputs, at::ScalarType dtype = at::kFloat)
      : model(mesh,
              {{.name = "block",
                .parameters = {{"weight", {outputs, inputs}}, {"bias", {outputs}}},
                .residency = fsdp::Residency::kKeep}},
              dtype) {
    use.weight = &model.parameter("weight");
    use.bias = &model.parameter("bias");
  }
  fsdp::ShardedModel model;
  dp::LinearUse use;
};

// The clipped sum of one microbatch of the layer, as released (one rank): weight [p,d] flattened, then bias.
inline at::Tensor released_sum(SingleLinear& layer, const dp::DpPlan& plan, dp::RecordingChoice way,
                               const at::Tensor& a, const at::Tensor& g, const dp::SegmentsPtr& segments) {
  const auto key = key_of(1);
  auto clipper = plan.clipper(layer.model, {.recording = way});
  auto mechanism = plan.mechanism(layer.model, key, nullptr);
  auto sum = clipper.begin();
  {
    const fsdp::Lease lease(layer.model, 0);
    dp::add_microbatch(clipper, sum, segments->units(), [&](const dp::RecorderPtr& recorder) {
      return dp::linear(layer.use, there(a), segments, recorder).mul(there(g)).sum();
    });
  }
  const auto gradient = mechanism.release(std::move(sum), {0});
  const fsdp::FlatGroup& group = *layer.model.groups().front();
  std::vector<at::Tensor> parts;
  for (const auto& range : group.plan().owned(0)) {
    parts.push_back(gradient.slices().shard(group).narrow(0, range.shard_offset, range.count));
  }
  return at::cat(parts).cpu().to(at::kDouble) * plan.divisor();
}

}  // namespace ghostshard::tests
