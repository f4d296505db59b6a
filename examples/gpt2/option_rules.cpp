#include "examples/gpt2/option_rules.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "examples/gpt2/clipping.h"
#include "examples/gpt2/max_batch.h"
#include "examples/gpt2/noise_bands.h"
#include "examples/gpt2/number_text.h"
#include "examples/gpt2/optimizer_rules.h"
#include "examples/gpt2/sampling.h"

namespace ghostshard::gpt2 {
namespace {

void must(bool holds, const std::string& rule) {
  if (!holds) throw std::invalid_argument(rule);
}

constexpr double kLeastTemperature = 1e-6;

bool valid_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::string number(double value) { return number_text("%g", value); }

void finite_positive(const char* flag, double value) {
  must(value > 0 && std::isfinite(value), std::string(flag) + " must be finite and > 0, got " + number(value));
}

void check_sampling(const Options& o) {
  must(o.max_new_tokens >= 1, "--max-new-tokens must be >= 1, got " + std::to_string(o.max_new_tokens));
  must(o.temperature >= 0 && std::isfinite(o.temperature),
       "--temperature must be finite and >= 0, got " + number(o.temperature));
  must(o.temperature == 0 || o.temperature >= kLeastTemperature,
       "--temperature must be 0 (always the likeliest token) or at least 1e-6 (scores are float32), got " +
           number(o.temperature));
  must(o.top_k >= 0, "--top-k must be >= 0 (0: all tokens), got " + std::to_string(o.top_k));
}

void check_generation(const Options& o) {
  must(!o.model.empty(), "--generate-tokens needs --model DIR");
  must(o.device.is_cpu(), "--device is for training, text is generated on the CPU");
  check_sampling(o);
}

void check_budget(const Options& o) {
  if (o.budget_limit) finite_positive("--budget-limit", *o.budget_limit);
  must(!o.budget_limit || !o.budget_register.empty(),
       "--budget-limit is the limit of a register: it needs --budget-register FILE");
  if (o.non_private) {
    must(!o.target_epsilon && !o.noise_multiplier && !o.delta && o.noise_key_file.empty() && o.budget_register.empty(),
         "--non-private gives no guarantee: it cannot be combined with --target-epsilon, --noise-multiplier, --delta, "
         "--noise-key-file or --budget-register");
    return;
  }
  must(o.target_epsilon.has_value() != o.noise_multiplier.has_value(),
       "give one of --target-epsilon E and --noise-multiplier S (or --non-private)");
  if (o.target_epsilon) finite_positive("--target-epsilon", *o.target_epsilon);
  if (o.noise_multiplier) finite_positive("--noise-multiplier", *o.noise_multiplier);
  if (o.delta) must(*o.delta > 0 && *o.delta < 1, "--delta must lie strictly between 0 and 1, got " + number(*o.delta));
  must(o.clip_norm >= 1e-30 && o.clip_norm <= 1e30,
       "--clip-norm must lie between 1e-30 and 1e30 (sums are float32), got " + number(o.clip_norm));
}

void check_training(const Options& o) {
  must(o.model.empty() != o.model_config.empty(),
       "give one of --model DIR (a Hugging Face folder) and --model-config FILE (fresh weights)");
  must(!o.data.empty(), "--data FILE is needed: the texts to train on, as written by `ghostshard data prepare`");
  must(!o.output.empty(), "--output DIR is needed: the folder for report, metrics, ledger and model");
  must(!o.given.at("expected-batch").empty(), "--expected-batch N is needed: how many texts a step draws in the mean");
  must(o.expected_batch >= 1, "--expected-batch must be >= 1, got " + std::to_string(o.expected_batch));
  must(o.microbatch >= 1, "--microbatch must be >= 1, got " + std::to_string(o.microbatch));
  must(o.steps.has_value() != o.epochs.has_value(), "give one of --steps and --epochs");
  must(!o.steps || *o.steps >= 1, "--steps must be >= 1, got " + std::to_string(o.steps.value_or(0)));
  if (o.epochs) finite_positive("--epochs", *o.epochs);
  must(valid_utf8(o.public_note), "--public-note must be valid UTF-8: it goes into the report");
  must(valid_utf8(o.tuning_note), "--tuning-note must be valid UTF-8: it goes into the report");
  finite_positive("--learning-rate", o.learning_rate);
  must(o.lora_rank > 0 || !o.lora_alpha, "--lora-alpha needs --lora-rank R");
  must(o.lora_rank > 0 || o.lora_targets == Options().lora_targets, "--lora-targets needs --lora-rank R");
  if (o.lora_alpha) finite_positive("--lora-alpha", *o.lora_alpha);
  must(o.min_learning_rate >= 0 && o.min_learning_rate <= o.learning_rate,
       "--min-learning-rate must lie between 0 and --learning-rate, got " + number(o.min_learning_rate));
  must(o.min_learning_rate == 0 || o.lr_schedule != "constant",
       "--min-learning-rate is for --lr-schedule linear or cosine");
  must(o.gather_dtype == "compute" || !o.mesh || o.mesh->model == 1,
       "--gather-dtype " + o.gather_dtype + " codes whole parameters: --mesh must have no model axis, got " +
           (o.mesh ? o.mesh->text() : std::string()));
  must(o.master_dtype == "float32" || o.compute_dtype == "bfloat16",
       "--master-dtype bfloat16 needs --compute-dtype bfloat16, got " + o.compute_dtype);
  check_optimizers(o);
  must(o.timeout_seconds >= 1, "--timeout must be >= 1 second, got " + std::to_string(o.timeout_seconds));
  must(o.eval_every >= 0, "--eval-every must be >= 0, got " + std::to_string(o.eval_every));
  must(o.eval_every == 0 || !o.eval_data.empty(), "--eval-every needs --eval-data FILE: the texts to evaluate on");
  must(o.keep_checkpoints >= 1, "--keep-checkpoints must be >= 1, got " + std::to_string(o.keep_checkpoints));
  if (o.epsilon_limit) {
    finite_positive("--epsilon-limit", *o.epsilon_limit);
    must(o.resume && !o.non_private, "--epsilon-limit raises the budget of a private run that goes on with --resume");
  }
  if (o.sample_tokens) check_sampling(o);
  must(o.sample_tokens || o.sample_every == 0, "--sample-every needs --sample-tokens (or --sample-prompt)");
  check_noise_bands(o);
  check_sampling_of_texts(o);
  check_max_batch(o);
  check_clipping(o);
  check_budget(o);
}

}  // namespace

void check_options(const Options& o) { o.generate_tokens ? check_generation(o) : check_training(o); }

}  // namespace ghostshard::gpt2
