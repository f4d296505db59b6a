#include "bench/step_compare/shape.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>

#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {
namespace {

struct Size {
  int64_t layers, width, heads;
};

// GPT-2 as it was published, but for the largest; names are the models' own.
const std::map<std::string, Size> kModels = {
    {"124M", {12, 768, 12}}, {"355M", {24, 1024, 16}}, {"774M", {36, 1280, 20}}};

}  // namespace

Shape parse_shape(int argc, char** argv) {
  Shape s;
  std::string recording = "automatic", device = "cpu", dtype = "float32", model;
  CLI::App app{"A private training step beside the same step without privacy, interleaved."};
  auto* layers = app.add_option("--layers", s.config.n_layer)->capture_default_str();
  auto* width = app.add_option("--width", s.config.n_embd)->capture_default_str();
  auto* heads = app.add_option("--heads", s.config.n_head)->capture_default_str();
  app.add_option("--vocab", s.config.vocab_size)->capture_default_str();
  app.add_option("--model", model, "A published size, in the place of layers, width and heads")
      ->check(CLI::IsMember(kModels))
      ->excludes(layers)
      ->excludes(width)
      ->excludes(heads);
  app.add_flag(
      "--untied", [&](int64_t) { s.config.tie_word_embeddings = false; }, "A head of its own");
  app.add_option("--length", s.length, "Tokens in a text")->capture_default_str();
  app.add_option("--texts", s.texts, "Texts in a microbatch, on each rank")->capture_default_str();
  app.add_option("--microbatches", s.microbatches)->capture_default_str();
  app.add_option("--repeats", s.repeats)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--device", device, "cpu; cuda: each rank the device of its LOCAL_RANK; or cuda:N")
      ->capture_default_str();
  app.add_option("--compute-dtype", dtype)->check(CLI::IsMember({"float32", "bfloat16"}))->capture_default_str();
  app.add_option("--peak-tflops", s.peak_tflops,
                 "Of a rank's device, for products of the compute dtype: what mfu is a share of. Default: by the "
                 "device's name, where that is listed")
      ->check(CLI::PositiveNumber);
  app.add_option("--commit", s.commit, "Goes into the result");
  app.add_option(
      "--trace", s.trace,
      "After the measurement, a step of each side in Chrome's trace format: FILE.private.json, FILE.plain.json");
  app.add_option("--output", s.output, "A file that gets the result as well");
  app.add_option("--recording", recording)
      ->check(CLI::IsMember({"automatic", "hold", "replay"}))
      ->capture_default_str();
  app.add_option("--memory-budget", s.memory_budget, "As the training program's: MiB, or 1.05x");
  app.add_flag("--explain-plan", s.explain);
  app.add_flag("--front", s.front, "Takes no step: prints the plans of all memory budgets as JSON, the fastest first");
  app.add_option("--hold-mib", s.hold_mib)->capture_default_str();
  app.add_flag("--serve", s.serve,
               "Rank 0 reads private, plain or quit, and answers with seconds, processor seconds, MiB");
  app.add_option("--only", s.only, "For peak memory on the CPU")->check(CLI::IsMember({"private", "plain"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));  // NOLINT(concurrency-mt-unsafe): no thread was started yet
  }
  if (!model.empty()) {
    const Size& size = kModels.at(model);
    s.config.n_layer = size.layers;
    s.config.n_embd = size.width;
    s.config.n_head = size.heads;
  }
  s.config.n_inner = 4 * s.config.n_embd;
  s.config.n_positions = std::max(s.config.n_positions, s.length);
  s.device = device_of(device);
  s.compute_dtype = dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  if (recording == "hold") s.recording = dp::RecordingChoice::kHold;
  if (recording == "replay") s.recording = dp::RecordingChoice::kReplay;
  return s;
}

}  // namespace ghostshard::gpt2
