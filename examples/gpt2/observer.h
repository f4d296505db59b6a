// Everything that happens beside a step: evaluation on public texts, metrics.jsonl, the progress line.
#pragma once

#include <optional>

#include "examples/gpt2/course.h"
#include "examples/gpt2/evaluate.h"
#include "examples/gpt2/progress.h"
#include "examples/gpt2/run_folder.h"

namespace ghostshard::gpt2 {

// Losses and batch sizes of private data, gathered only if the user allowed it (--allow-nonprivate-metrics).
class PrivateMetrics {
 public:
  explicit PrivateMetrics(bool wanted) : wanted_(wanted) {}
  void begin_step() { loss_and_units_.zero_(); }
  // loss: a microbatch's, summed over its units.
  void add(const at::Tensor& loss, int64_t units);
  // The step's mean loss and batch size over all ranks. A collective.
  void fill(MetricsLine& line, fsdp::Mesh& mesh) const;

 private:
  bool wanted_;
  at::Tensor loss_and_units_ = at::zeros({2}, at::kDouble);
};

class Observer {
 public:
  // All references must outlive it.
  Observer(const Options& options, const Inputs& in, Gpt2& model, const Course& course);

  // The line that a run begins with, unless an earlier session has written it. A collective.
  void before_first(std::optional<double> epsilon);
  void begin_step() { private_metrics_.begin_step(); }
  void add_microbatch(const at::Tensor& loss, int64_t units) { private_metrics_.add(loss, units); }
  // A collective.
  void after(int64_t steps_done, std::optional<double> epsilon);
  // Ends the progress line.
  void finish_line() { progress_.finish(); }

  // The run's first and last loss on the public texts; earlier sessions count. Nothing without --eval-data.
  const std::optional<Evaluation>& first() const { return first_; }
  const std::optional<Evaluation>& last() const { return last_; }
  double training_seconds() const { return progress_.seconds() - evaluating_; }
  // Times and memory may be written where outsiders read them: no step is private, or the user allowed it.
  bool times_are_public() const { return !in_.plan || options_.allow_nonprivate_metrics; }

 private:
  bool evaluates_after(int64_t steps_done) const;
  Evaluation evaluate_now();

  const Options& options_;
  const Inputs& in_;
  Gpt2& model_;
  fsdp::Mesh& mesh_;
  const Course& course_;
  Progress progress_;
  PrivateMetrics private_metrics_;
  std::optional<MetricsFile> metrics_;  // rank 0
  std::optional<double> tokens_per_text_;
  std::optional<Evaluation> first_, last_;
  int64_t every_ = 1;
  double evaluating_ = 0;  // seconds
};

}  // namespace ghostshard::gpt2
