// Everything that happens beside a step: evaluation on public texts, samples, numbers for metrics.jsonl, the progress
// line.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "dp/run/private_run.h"
#include "examples/gpt2/evaluate.h"
#include "examples/gpt2/progress.h"
#include "examples/gpt2/samples.h"
#include "examples/gpt2/setup.h"

namespace ghostshard::gpt2 {

class Observer {
 public:
  // All references must outlive it.
  Observer(const Options& options, const Inputs& in, Gpt2& model, const dp::Course& course);

  // After a step, and before the first one: shows progress. Returns fields for the line of metrics, which depend on
  // private data through released gradients alone, unless the user allowed more. Times are not among them: a step's
  // duration follows from the texts in its batch, and to know in which steps a text was is to lose the amplification by
  // sampling. A collective.
  nlohmann::ordered_json after(int64_t steps_done, std::optional<double> epsilon,
                               const std::optional<dp::BatchFacts>& batch);
  // Ends the progress line.
  void finish_line() { progress_.finish(); }

  // The run's first and last loss on the public texts; earlier sessions count. Nothing without --eval-data.
  const std::optional<Evaluation>& first() const { return first_; }
  const std::optional<Evaluation>& last() const { return last_; }
  double training_seconds() const { return progress_.seconds() - evaluating_; }
  // Times and memory may be written where outsiders read them: no step is private, or the user allowed it.
  bool times_are_public() const { return options_.non_private || options_.allow_nonprivate_metrics; }

 private:
  bool evaluates_after(int64_t steps_done) const;
  Evaluation evaluate_now();

  const Options& options_;
  const Inputs& in_;
  Gpt2& model_;
  const dp::Course& course_;
  int64_t begun_;  // steps done by earlier sessions
  int64_t last_step_;
  Progress progress_;
  Samples samples_;
  std::optional<double> tokens_per_text_;
  std::optional<Evaluation> first_, last_;
  int64_t every_ = 1;
  double earlier_ = 0;     // seconds of earlier sessions
  double evaluating_ = 0;  // seconds
};

}  // namespace ghostshard::gpt2
