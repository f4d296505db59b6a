// The same loop as PrivateRun (dp/run/private_run.h) without clipping and without noise, to compare with and to warm up
// on public data. Nothing here carries a guarantee. There is no ledger and no report; a checkpoint keeps what binds the
// run.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dp/run/agreement.h"
#include "dp/run/course.h"
#include "dp/run/found_run.h"
#include "dp/run/nonprivate.h"
#include "dp/run/private_run.h"

namespace ghostshard::dp {

struct PlainConfig {
  int64_t units = 0;           // in the data set
  int64_t expected_batch = 0;  // 1 ≤ expected batch ≤ units
  int64_t steps = 0;
  uint64_t seed = 0;  // of the batches: without privacy a run can be repeated
};

class PlainRun {
 public:
  class Step {
   public:
    int64_t number() const;
    // As PrivateRun::Step's, but that a loss is called once for each microbatch.
    void add(std::span<const int64_t> lengths, int64_t microbatch, const LossOfUnits& loss);
    void update(double learning_rate);

   private:
    friend class PlainRun;
    explicit Step(PlainRun& run) : run_(&run) {}
    PlainRun* run_;
  };

  // As PrivateRun::begin(). Before its first checkpoint a run has nothing to go on with: it begins anew.
  PlainRun(fsdp::ShardedModel& model, std::unique_ptr<fsdp::Optimizer> optimizer, const PlainConfig& config,
           FolderOptions options, std::vector<Part> parts, bool batch_metrics);
  PlainRun(const PlainRun&) = delete;
  PlainRun& operator=(const PlainRun&) = delete;

  std::optional<Step> next();
  void write_metrics(const nlohmann::ordered_json& fields);
  bool needs_metrics() const { return course_->needs_metrics(); }
  const Course& course() const { return *course_; }
  const std::optional<FoundRun>& resumed() const { return resumed_; }
  const std::optional<BatchFacts>& batch_facts() const { return batch_facts_; }

 private:
  fsdp::ShardedModel& model_;
  std::unique_ptr<fsdp::Optimizer> optimizer_;
  RunKey key_;
  PoissonSampler sampler_;
  PlainAccumulator accumulator_;
  bool batch_metrics_;
  std::optional<FoundRun> resumed_;
  std::optional<Course> course_;
  std::optional<double> learning_rate_;
  at::Tensor loss_and_units_ = at::zeros({2}, at::kDouble);
  std::optional<BatchFacts> batch_facts_;
};

}  // namespace ghostshard::dp
