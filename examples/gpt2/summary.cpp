#include "examples/gpt2/summary.h"

#include <cmath>
#include <iostream>

#include "accountant/standard_streams.h"
#include "examples/gpt2/number_text.h"
#include "fsdp/host_memory.h"

namespace ghostshard::gpt2 {
namespace {

std::string clipping_text(const dp::DpPlan& plan) {
  const auto& quantile = plan.config().clip_quantile;
  if (!quantile) return "";
  return " (adapts: quantile " + number_text("%g", quantile->target) + " of the norms, counted with noise " +
         number_text("%g", quantile->count_noise.value()) + ")";
}

void announce_budget(const Options& o, const dp::DpPlan& plan) {
  const double delta = plan.delta().value(), inverse_n = 1.0 / static_cast<double>(plan.config().units);
  std::cerr << "Budget: noise multiplier " << number_text("%.4f", plan.noise_multiplier().value()) << ", clip norm "
            << number_text("%g", o.clip_norm) << clipping_text(plan) << ", epsilon "
            << epsilon_text(plan.epsilon_after(plan.config().steps).upper) << " at delta " << number_text("%g", delta)
            << " after all steps\n";
  if (delta >= inverse_n) {
    std::cerr << "warning: delta should be well below 1/n = " << number_text("%g", inverse_n) << "; at "
              << number_text("%g", delta) << " publishing one text whole would be allowed\n";
  }
  if (o.allow_nonprivate_metrics) {
    std::cerr << "warning: losses and batch sizes of the private data, times and memory of the steps will be written; "
                 "they are not covered by the guarantee\n";
  }
}

void announce_repeated_steps(const dp::FoundRun& found, const dp::Extent& extent, const dp::DpPlan& plan) {
  const int64_t repeated = found.attempts.redone();
  if (repeated == 0) return;
  const bool promises = plan.config().target_epsilon.has_value();
  const double planned = plan.epsilon_after(plan.config().steps).upper;
  const double whole = plan.epsilon_after(found.rounds, extent.first, extent.planned - extent.first).upper;
  std::cerr << repeated
            << " step(s) after it were charged, but their results are lost: they are repeated with fresh sampling and "
            << "noise and charged again; to the planned end that would be epsilon " << epsilon_text(whole)
            << (promises ? " (promised: " : " (planned: ")
            << epsilon_text(promises ? plan.promised_epsilon().value() : planned) << ")\n";
  if (extent.last < extent.planned) {
    std::cerr << "To keep " << (promises ? "the promise" : "the limit") << " the run will end after step "
              << extent.last << " of " << extent.planned << "; --epsilon-limit raises it\n";
  } else if (!promises) {
    std::cerr << "--noise-multiplier promises no epsilon: the run goes to its planned end, and the report will say "
                 "what it cost; --epsilon-limit would end it earlier\n";
  }
}

void summarize_loss(const Observer& observer) {
  if (!observer.first() || !observer.last()) return;
  std::cout << "Public evaluation loss: " << number_text("%.4f", observer.first()->loss) << " before, "
            << number_text("%.4f", observer.last()->loss) << " after (standard error "
            << number_text("%.4f", observer.last()->standard_error) << ")\n";
}

void summarize_early_end(const Options& o, const dp::Extent& extent, const dp::PrivateRun& run) {
  const bool chain = run.plan().config().noise_blt.is_on(), registered = !o.budget_register.empty();
  std::string cause = run.charged_again() ? ", because steps were repeated" : "";
  if (chain) cause += std::string(cause.empty() ? ", because" : " or") + " a new chain of noise began";
  const double epsilon = run.plan().epsilon_after(run.rounds(), extent.last, extent.planned - extent.last).upper;
  std::cout << "Ended after step " << extent.last << " of " << extent.planned
            << ": further steps would break the promised or given epsilon"
            << (registered ? ", or the budget register's limit" : "") << cause << "; --resume --epsilon-limit "
            << epsilon_text(epsilon) << " would go on to the end" << (registered ? " if the register has room" : "")
            << '\n';
}

// Without what a terminal would obey.
std::string shown(const std::filesystem::path& path) { return accountant::one_line(path.string()); }

void list_files(const Options& o) {
  const std::filesystem::path output(o.output);
  std::cout << "Written: " << shown(output / "model") << ", ";
  if (o.lora_rank > 0) std::cout << shown(output / "adapter") << ", ";
  std::cout << shown(output / "metrics.jsonl");
  if (!o.non_private) {
    std::cout << ", " << shown(output / "privacy_report.json") << ", " << shown(output / "privacy_report.html") << ", "
              << shown(output / "ledger.jsonl");
  }
  std::cout << '\n';
}

}  // namespace

void announce(const Options& o, const Inputs& in, Gpt2& model, const dp::PrivateRun* run) {
  const Config& c = in.config;
  std::cerr << "GPT-2: " << c.n_layer << " blocks, width " << c.n_embd << ", vocabulary " << c.vocab_size << ", "
            << model.parameters().parameter_count() << " parameters, " << model.parameters().trainable_parameter_count()
            << " trained, on " << model.parameters().mesh().world_size() << " rank(s)"
            << (o.mesh ? ", mesh " + o.mesh->text() : "") << '\n';
  const std::string unit = in.data->unit_of_privacy();
  // Of users, how many texts they wrote is private.
  std::cerr << "Data: " << in.data->units() << (unit == "text" ? " texts" : " units (" + unit + ")")
            << ", expected batch " << o.expected_batch << ", " << in.steps << " steps\n";
  if (run != nullptr) {
    announce_budget(o, run->plan());
  } else {
    std::cerr << "No privacy: --non-private trains without clipping and noise, nothing is guaranteed\n";
  }
}

void announce_resumption(const dp::FoundRun& found, const dp::Course& course, const dp::PrivateRun* run) {
  if (found.checkpoint.empty()) {
    std::cerr << "Resuming at the start: no checkpoint was written\n";
  } else {
    std::cerr << "Resuming after step " << found.step << " from " << shown(found.checkpoint) << '\n';
  }
  if (run == nullptr) return;
  const bool key_file = run->key().comes_again();
  if (course.extent().first < course.extent().last) {
    std::cerr << "From here on sampling and noise follow from a new " << (key_file ? "run id" : "key") << " (epoch "
              << found.ledger.epochs.size() + 1 << " in the ledger)\n";
  }
  if (!key_file) {
    std::cerr << "Only the number of texts in --data was checked against the original run, not their content\n";
  }
  announce_repeated_steps(found, course.extent(), run->plan());
}

void summarize_stop(const dp::Course& course, const dp::PrivateRun* run) {
  std::cout << "Stopped after step " << *course.newest_checkpoint() << " of " << course.extent().planned
            << ", checkpoint in " << shown(course.checkpoints()) << ". The same command with --resume goes on"
            << (run != nullptr && !run->key().comes_again() ? " under a new noise key" : "") << ".\n";
}

void summarize(const Options& o, const dp::Course& course, const Observer& observer, const dp::PrivateRun* run) {
  summarize_loss(observer);
  const dp::Extent& extent = course.extent();
  const double seconds = observer.training_seconds();
  const int64_t steps = extent.last - extent.first;
  // Standard error is the operator's; how long private steps took, and how much memory, is not for everybody.
  (observer.times_are_public() ? std::cout : std::cerr)
      << "Time: " << clock_text(seconds) << " for " << steps << " steps ("
      << number_text("%.2f", static_cast<double>(o.expected_batch * steps) / seconds)
      << " texts/s expected), peak memory " << number_text("%.0f", fsdp::peak_host_memory_mib()) << " MiB on rank 0\n";
  if (extent.last < extent.planned && run != nullptr) summarize_early_end(o, extent, *run);
  list_files(o);
}

}  // namespace ghostshard::gpt2
