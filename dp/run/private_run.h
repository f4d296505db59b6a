// A private training run: the one object between a model and its users' data.
//
//   auto run = dp::PrivateRun::begin(model, fsdp::make_adamw(model, {}), plan, {{.folder = "run1"}});
//   while (auto step = run.next()) {
//     step->add(row_counts, 16, [&](std::span<const int64_t> units, const dp::RecorderPtr& recorder) {
//       return my_model.summed_losses(data.batch(units), recorder);
//     });
//     step->update(1e-3);
//   }
//   run.finish();
//
// The caller computes losses; everything that the guarantee rests on happens here, in this order, step by step: the
// draw of this step and attempt; each microbatch's clipped gradients into one sum (backward runs here, twice if the
// plan of recording wants it); release (ledger line, noise, reduction); the optimizer, on the private gradient and
// nothing else; the release's price. Before the first step all ranks agree on library, plan, options, model and
// whatever parts the caller names; what binds the run stands in the ledger's header. The folder then holds
//
//   ledger.jsonl            what was spent (accountant/ledger.h); written ahead
//   metrics.jsonl           a line for each step
//   checkpoints/            if they are due, or the run was stopped
//   privacy_report.json     and .html, from finish()
//
// Every rank makes the same calls. Nothing here prints.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "dp/recording/recorder.h"
#include "dp/run/agreement.h"
#include "dp/run/course.h"
#include "dp/run/found_run.h"
#include "dp/run/registered_budget.h"
#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::dp {

// The sum of these units' losses, differentiable; a unit's loss must depend on that unit alone. There may be none: on
// several ranks, or with a largest batch. It may be called twice for one microbatch, with the same recorder, and must
// then compute the same again.
using LossOfUnits = std::function<at::Tensor(std::span<const int64_t> units, const RecorderPtr& recorder)>;

struct RunOptions : FolderOptions {
  // 32 bytes, read by rank 0 (dp/mechanism/run_key.h). Empty: drawn by the operating system, in memory only.
  std::filesystem::path noise_key_file = {};
  // A resumed run keeps to this instead of what its plan promised, whether it is more or less; it is refused if the
  // ledger has charged more already. If the plan was given its noise, it promised nothing, and the run goes to its
  // planned end unless this limits it.
  std::optional<accountant::Epsilon> epsilon_limit = {};
  // What the run was for, such as its model, is where it belongs. false: a run that goes on with `resume` redoes, and
  // charges again, steps that no checkpoint holds, even if its report was written.
  bool has_outputs = true;
  // All runs on the data add up in this register, and the run is refused if its plan breaks their limit.
  std::optional<BudgetRegisterOptions> budget_register = {};
  ClipperOptions recording = {};
  // The caller's own: options, and digests of the data and of the files that weights come from. Library, plan, options
  // here, and the model's names, shapes and dtype are compared without being named. The starting weights bind the run,
  // but a rank that was given others than its peers shows only in a digest of their file: each rank holds a part.
  std::vector<Part> parts = {};
  // Statements for the report, by its sections (accountant/report.h), beside and over those that the run itself makes.
  nlohmann::json facts = nlohmann::json::object();
  // Step::batch_facts() are to be shown: not covered by the guarantee, and the report says so.
  bool nonprivate_metrics = false;
};

// Numbers of private data, without noise.
struct BatchFacts {
  int64_t units = 0;
  std::optional<double> mean_loss;  // none without a unit
};

// From each rank's sum of losses and number of units, float64 [2], which are added up over the ranks. A collective.
BatchFacts batch_facts_over(const at::Tensor& loss_and_units, fsdp::Mesh& mesh);

class PrivateRun {
 public:
  class Step;

  // Begins a run or, with options.resume, goes on with one, from its newest checkpoint. Reads and checks everything
  // first: AgreedFailure on every rank, and nothing is written, if the caller made a mistake, the ranks differ, the run
  // to resume is another one or what it spent cannot be proven. The model holds the weights to start from. A
  // collective. model must outlive the run, and nobody else may change its weights.
  static PrivateRun begin(fsdp::ShardedModel& model, std::unique_ptr<fsdp::Optimizer> optimizer, const DpConfig& config,
                          RunOptions options);
  ~PrivateRun();
  PrivateRun(PrivateRun&& other) noexcept;

  // The next step, after the one before has been ended by update() (std::logic_error): writes its line of metrics and,
  // if it is due, a checkpoint. Nothing at the end of the run: its last step, the last one that keeps the promised
  // epsilon (steps repeated after a crash are charged again), or the step after which a signal asked to stop. A
  // collective.
  std::optional<Step> next();
  // Adds fields to the line of metrics of the steps done so far, which next() writes otherwise: for numbers that depend
  // on private data through released gradients alone.
  void write_metrics(const nlohmann::ordered_json& fields);
  bool needs_metrics() const;  // false: an earlier session has written this line

  // After the last step: the report, written on rank 0 and returned there; null on other ranks. A collective.
  nlohmann::json finish();

  const DpPlan& plan() const;
  const RunKey& key() const;  // its public facts
  const Course& course() const;
  // The run that this session resumed; none for a new one.
  const std::optional<FoundRun>& resumed() const;
  // Nothing is left to do and the report is there: next() has no step, and finish() may be left out.
  bool was_finished() const;
  // Upper end of what the ledger has charged.
  double epsilon() const;
  int64_t releases() const;
  // More was charged than the steps done cost: steps were repeated, or a pass was begun again.
  bool charged_again() const;
  const accountant::Rounds& rounds() const;  // of the releases, by groups of units
  // Of the step ended last, if nonprivate_metrics allows it.
  const std::optional<BatchFacts>& batch_facts() const;

 private:
  struct State;
  explicit PrivateRun(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One logical batch: exactly one draw, added once, released once.
class PrivateRun::Step {
 public:
  int64_t number() const;  // from 0

  // Draws the batch, deals it to the ranks and adds every unit's clipped gradient, at most `microbatch` units at a
  // time. lengths: empty, or for each unit the rows that it takes, so that ranks have equal work; the same on every
  // rank (AgreedFailure otherwise, before anything is charged). A collective. Once (std::logic_error). If a loss
  // throws, the run cannot go on.
  void add(std::span<const int64_t> lengths, int64_t microbatch, const LossOfUnits& loss);
  // Releases the sum and updates the weights. A collective. Once, after add() (std::logic_error).
  void update(double learning_rate);

 private:
  friend class PrivateRun;
  explicit Step(State& run) : run_(&run) {}
  Microbatches dealt_batch(std::span<const int64_t> lengths, int64_t microbatch) const;
  State* run_;
};

}  // namespace ghostshard::dp
