// The inside of a PrivateRun, for private_run.cpp and private_run_begin.cpp.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dp/mechanism/optimizer.h"
#include "dp/run/private_run.h"

namespace ghostshard::dp {

inline constexpr const char* kStartingWeights = "the weights to start from";  // a part's name
inline constexpr const char* kClipNorm = "clip_norm";  // in checkpoints and metrics, if it adapts

// All that is decided before the first step.
struct RunBeginning {
  std::optional<FoundRun> resumed;
  std::optional<DpPlan> plan;
  std::optional<RunKey> key;  // the other ranks' are placeholders until rank 0 shares its own
  std::optional<fsdp::Checkpoint> checkpoint;
  std::vector<Part> parts;
  Extent extent;
  bool finished = false;
  std::optional<accountant::LedgerWriter> ledger;  // rank 0
  std::optional<RegisteredBudget> registered;      // if the run has a register and goes on
};

struct PrivateRun::State {
  State(fsdp::ShardedModel& on, std::unique_ptr<fsdp::Optimizer> rule, RunOptions given, RunBeginning begun);

  enum class Phase { kBetweenSteps, kDrawn, kAdding, kAdded };

  fsdp::ShardedModel& model;
  PrivateOptimizer optimizer;
  RunOptions options;
  RunBeginning beginning;
  PoissonSampler sampler;
  Clipper clipper;
  GaussianMechanism mechanism;
  Course course;
  std::unique_ptr<accountant::Accountant> accountant;  // charged with the ledger's releases
  double epsilon = 0;
  int64_t releases = 0;
  accountant::Rounds rounds;  // of them, by groups of units
  accountant::Rounds rounds_of_session;

  Phase phase = Phase::kBetweenSteps;
  StepId id;
  std::optional<ClippedSum> sum;
  std::optional<double> learning_rate;                      // of the step done last
  std::optional<double> clip_norm;                          // the same, if it adapts
  at::Tensor loss_and_units = at::zeros({2}, at::kDouble);  // of this rank's batch
  std::optional<BatchFacts> batch_facts;
};

}  // namespace ghostshard::dp
