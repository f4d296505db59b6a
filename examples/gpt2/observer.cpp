#include "examples/gpt2/observer.h"

#include <algorithm>

namespace ghostshard::gpt2 {

void PrivateMetrics::add(const at::Tensor& loss, int64_t units) {
  if (!wanted_) return;
  auto* values = loss_and_units_.data_ptr<double>();
  values[0] += loss.item<double>();
  values[1] += static_cast<double>(units);
}

void PrivateMetrics::fill(MetricsLine& line, fsdp::Mesh& mesh) const {
  if (!wanted_) return;
  if (mesh.model_rank() != 0) loss_and_units_.zero_();  // model peers saw the same texts
  if (mesh.world_size() > 1) mesh.control().all_reduce_sum(loss_and_units_);
  const auto* values = loss_and_units_.const_data_ptr<double>();
  line.private_batch = static_cast<int64_t>(values[1]);
  if (values[1] > 0) line.private_loss = values[0] / values[1];
}

Observer::Observer(const Options& o, const Inputs& in, Gpt2& model, const Course& course)
    : options_(o),
      in_(in),
      model_(model),
      mesh_(model.parameters().mesh()),
      course_(course),
      progress_(in.steps, mesh_.rank() == 0, course.first),
      private_metrics_(o.allow_nonprivate_metrics) {
  every_ = o.eval_every > 0 ? o.eval_every : std::max<int64_t>(1, in.steps / 10);
  if (mesh_.rank() == 0) metrics_.emplace(std::filesystem::path(o.output) / "metrics.jsonl", o.resume);
  const KeptMetrics& kept = course.kept;
  if (kept.first_eval_loss) {
    first_ = {.loss = *kept.first_eval_loss, .standard_error = 0};
    last_ = {.loss = *kept.last_eval_loss, .standard_error = *kept.last_eval_standard_error};
  }
  if (in.eval) {
    tokens_per_text_ = static_cast<double>(in.eval->tokens()) / static_cast<double>(in.eval->units());
  }
}

void Observer::before_first(std::optional<double> epsilon) {
  // Either every rank evaluates or none; only rank 0 knows the file's lines.
  const at::Tensor there = at::full({1}, course_.kept.has_step ? 1 : 0, at::kLong);
  if (mesh_.world_size() > 1) mesh_.control().broadcast(there, 0);
  if (there.item<int64_t>() == 0) after(course_.first, epsilon);
}

bool Observer::evaluates_after(int64_t steps_done) const {
  return in_.eval && (steps_done % every_ == 0 || steps_done == course_.last);
}

Evaluation Observer::evaluate_now() {
  const double before = progress_.seconds();
  const Evaluation result = evaluate(model_, *in_.eval, options_.microbatch);
  evaluating_ += progress_.seconds() - before;
  if (!first_) first_ = result;
  last_ = result;
  return result;
}

void Observer::after(int64_t steps_done, std::optional<double> epsilon) {
  const double session = progress_.seconds() - evaluating_;
  const int64_t steps_of_session = steps_done - course_.first;
  MetricsLine line{.step = steps_done, .learning_rate = in_.rate.at(std::max<int64_t>(steps_done, 1) - 1)};
  line.epsilon = epsilon;
  if (times_are_public()) line.seconds = course_.kept.seconds + session;
  if (times_are_public() && tokens_per_text_ && steps_of_session > 0) {
    line.tokens_per_second =
        *tokens_per_text_ * static_cast<double>(options_.expected_batch * steps_of_session) / session;
  }
  if (steps_of_session > 0) private_metrics_.fill(line, mesh_);
  if (evaluates_after(steps_done)) {
    const Evaluation result = evaluate_now();
    line.eval_loss = result.loss;
    line.eval_standard_error = result.standard_error;
  }
  if (metrics_) metrics_->write(line);
  if (steps_of_session > 0) {
    progress_.show({.step = steps_done, .epsilon = epsilon, .public_loss = line.eval_loss});
  }
  if (steps_done == course_.last) progress_.finish();
}

}  // namespace ghostshard::gpt2
