// The same training step without clipping and without noise, to compare with and to warm up on public data.
// Nothing here carries a guarantee, and nothing here can reach a PrivateOptimizer.
#pragma once

#include <memory>

#include "dp/mechanism/sampler.h"
#include "dp/recording/recorder.h"
#include "fsdp/reduce_pipeline.h"
#include "fsdp/reduce_scatter.h"

namespace ghostshard::dp {

// Adds weight gradients as backward reports them: gᵀa straight into the buffer.
class PlainRecorder final : public Recorder {
 public:
  explicit PlainRecorder(fsdp::GradientBuffers& sums) : sums_(sums) {}
  void linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) override;
  void embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                 const SegmentsPtr& segments) override;
  void instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) override;
  void layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                  const SegmentsPtr& segments) override;
  // Always kept tiles: as fast and as lean as the private step's.
  std::optional<TileLogits> takes_tiles(const fsdp::Parameter& weight, const at::Tensor& a,
                                        const SegmentsPtr& segments) override;
  void head_tile(const LinearUse& use, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                 const at::Tensor& g, const SegmentsPtr& segments) override;

 private:
  fsdp::GradientBuffers& sums_;
};

// begin → recorder for each microbatch → reduce. Buffers are allocated once.
class PlainAccumulator {
 public:
  PlainAccumulator(fsdp::GroupedParameters& model, double divisor);
  void begin() { sums_.zero(); }
  RecorderPtr recorder() { return recorder_; }
  // This rank's slices of the sum over ranks, divided by the divisor; valid until the next call. A collective.
  const fsdp::ShardBuffers& reduce();

 private:
  fsdp::GroupedParameters& model_;
  double divisor_;
  fsdp::GradientBuffers sums_;
  std::shared_ptr<PlainRecorder> recorder_;
  fsdp::ShardBuffers slices_;
  fsdp::ReducePipeline reduction_;
};

// The same Poisson sampling, so that a run without privacy sees the same kind of batches. 1 ≤ expected_batch ≤ units
// (std::invalid_argument otherwise); key must outlive the sampler.
PoissonSampler nonprivate_sampler(const RunKey& key, int64_t units, int64_t expected_batch, int64_t rank,
                                  int64_t world_size);

}  // namespace ghostshard::dp
