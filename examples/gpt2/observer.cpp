#include "examples/gpt2/observer.h"

#include <algorithm>
#include <cmath>

#include "fsdp/agree.h"

namespace ghostshard::gpt2 {

Observer::Observer(const Options& o, const Inputs& in, Gpt2& model, const dp::Course& course)
    : options_(o),
      in_(in),
      model_(model),
      course_(course),
      begun_(course.extent().first),
      last_step_(course.extent().last),
      progress_(in.steps, model.parameters().mesh().rank() == 0, course.extent().first),
      samples_(o, in, model, course),
      every_(o.eval_every > 0 ? o.eval_every : std::max<int64_t>(1, in.steps / 10)) {
  for (const auto& line : course.kept_metrics()) {
    earlier_ = line.value("seconds", 0.0);
    if (!line.contains("eval_loss")) continue;
    last_ = {.loss = line["eval_loss"].get<double>(), .standard_error = line.value("eval_standard_error", 0.0)};
    if (!first_) first_ = last_;
  }
  if (in.eval) {
    tokens_per_text_ = static_cast<double>(in.eval->tokens()) / static_cast<double>(in.eval->units());
  }
}

bool Observer::evaluates_after(int64_t steps_done) const {
  return in_.eval && (steps_done % every_ == 0 || steps_done == last_step_);
}

Evaluation Observer::evaluate_now() {
  const double before = progress_.seconds();
  const Evaluation result = evaluate(model_, *in_.eval, options_.microbatch);
  evaluating_ += progress_.seconds() - before;
  if (!std::isfinite(result.loss)) {  // of public texts, and the same on every rank
    progress_.finish();
    throw fsdp::AgreedFailure(course_.diverged("the losses on --eval-data must be finite, those"), false);
  }
  if (!first_) first_ = result;
  last_ = result;
  return result;
}

nlohmann::ordered_json Observer::after(int64_t steps_done, std::optional<double> epsilon,
                                       const std::optional<dp::BatchFacts>& batch) {
  const double session = progress_.seconds() - evaluating_;
  const int64_t steps_of_session = steps_done - begun_;
  nlohmann::ordered_json fields = {{"learning_rate", in_.rate.at(std::max<int64_t>(steps_done, 1) - 1)}};
  std::optional<double> loss;
  if (evaluates_after(steps_done)) {
    const Evaluation result = evaluate_now();
    loss = fields["eval_loss"] = result.loss;
    fields["eval_standard_error"] = result.standard_error;
  }
  const double before = progress_.seconds();
  samples_.after(steps_done);
  evaluating_ += progress_.seconds() - before;
  if (times_are_public()) {
    fields["seconds"] = earlier_ + session;
    if (tokens_per_text_ && steps_of_session > 0) {
      const auto texts = static_cast<double>(options_.expected_batch * steps_of_session);
      fields["tokens_per_second"] = *tokens_per_text_ * texts / session;
    }
  }
  if (batch) {
    fields["private_batch"] = batch->units;
    if (batch->mean_loss) fields["private_loss"] = *batch->mean_loss;
  }
  if (steps_of_session > 0) progress_.show({.step = steps_done, .epsilon = epsilon, .public_loss = loss});
  if (steps_done == last_step_) progress_.finish();
  return fields;
}

}  // namespace ghostshard::gpt2
