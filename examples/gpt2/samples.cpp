#include "examples/gpt2/samples.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace ghostshard::gpt2 {

Samples::Samples(const Options& o, const Inputs& in, Gpt2& model, const dp::Course& course)
    : model_(model),
      how_(generation_options(o, in.original_config)),
      every_(o.sample_every > 0 ? o.sample_every : std::max<int64_t>(1, in.steps / 10)),
      last_step_(course.extent().last) {
  if (!o.sample_tokens) return;
  prompt_ = parse_token_ids(*o.sample_tokens, in.config.vocab_size);
  if (model.parameters().mesh().rank() != 0) return;
  const auto path = std::filesystem::path(o.output) / "samples.jsonl";
  if (o.resume) {
    const auto kept = dp::keep_metrics(path, course.extent().first);
    if (!kept.empty()) written_ = kept.back()["step"].get<int64_t>();
  }
  file_.emplace(path, o.resume);
}

void Samples::after(int64_t steps_done) {
  if (prompt_.empty() || (steps_done % every_ != 0 && steps_done != last_step_)) return;
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> tokens = generate(model_, prompt_, how_);
  if (!file_ || steps_done <= written_) return;
  file_->write({{"step", steps_done}, {"prompt", prompt_}, {"tokens", tokens}});
  written_ = steps_done;
}

}  // namespace ghostshard::gpt2
