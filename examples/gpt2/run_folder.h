// The folder of a run: metrics.jsonl and ledger.jsonl while it goes, privacy_report.json and model/ at the end.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>

#include "dp/mechanism/plan.h"
#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

// A name that does not exist yet, or an empty folder. std::invalid_argument otherwise: a run never overwrites another.
void check_output_is_new(const std::filesystem::path& output);

// One line of metrics.jsonl. It depends on private data through released gradients alone, but for the last four fields,
// which a private run has only with --allow-nonprivate-metrics. Times are among them: a step's duration follows from the
// texts in its batch, and to know in which steps a text was is to lose the amplification by sampling.
struct MetricsLine {
  int64_t step = 0;
  std::optional<double> epsilon;
  double learning_rate = 0;                   // of the step just done; at the start, of the first one
  std::optional<double> eval_loss;            // mean over tokens of the public texts
  std::optional<double> eval_standard_error;  // over texts
  std::optional<double> seconds;              // since the first step began
  std::optional<double> tokens_per_second;    // expected, from public constants
  std::optional<double> private_loss;
  std::optional<int64_t> private_batch;
};

// Appends whole lines. std::runtime_error naming the file if it cannot.
class MetricsFile {
 public:
  // append: to the file that is there; otherwise a new one.
  MetricsFile(const std::filesystem::path& path, bool append);
  void write(const MetricsLine& line);

 private:
  std::filesystem::path path_;
  std::ofstream stream_;
};

// The facts that the run knows and the ledger does not, as accountant::build_report takes them.
nlohmann::json report_facts(const Options& options, const dp::DpPlan& plan, const dp::RunKey& key, int64_t world_size,
                            int64_t trainable_parameters);

}  // namespace ghostshard::gpt2
