// One training step with privacy beside the same step without, interleaved in one process: seconds, their ratio, and
// where the time goes. Peak memory needs a process each (--only). Run it alone or under `torchrun --no-python`.
//
//   step_compare --layers 12 --width 768 --vocab 50257 --length 100 --texts 8 --microbatches 4 --repeats 5
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "dp/nonprivate.h"
#include "dp/optimizer.h"
#include "dp/plan.h"
#include "examples/gpt2/step_model.h"
#include "fsdp/host_memory.h"

namespace {

using namespace ghostshard;

struct Shape {
  gpt2::Config config;
  int64_t length = 100;
  int64_t texts = 8;  // in a microbatch, on each rank
  int64_t microbatches = 4;
  int64_t repeats = 5;
  std::string only;
  bool serve = false;
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
  int64_t hold_mib = 1024;
  std::optional<double> budget_mib;
  bool explain = false;
};

constexpr int kPhases = 5;
constexpr const char* kPhaseNames[kPhases] = {"forward", "backward", "clipped sum", "noise+reduce", "optimizer"};

// Wall time by phase, and the processor time of the whole step: on a machine that others use too, the second is the
// steadier of the two.
class Stopwatch {
 public:
  void lap(int phase) {
    const auto now = Clock::now();
    seconds_[phase] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
    processor_ = processor_seconds() - began_;
  }
  std::array<double, kPhases> seconds() const { return seconds_; }
  double total() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }
  double processor() const { return processor_; }

 private:
  using Clock = std::chrono::steady_clock;
  static double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  Clock::time_point last_ = Clock::now();
  std::array<double, kPhases> seconds_{};
  double began_ = processor_seconds();
  double processor_ = 0;
};

gpt2::TokenBatch random_batch(const Shape& shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  gpt2::TokenBatch batch;
  const int64_t rows = shape.texts * shape.length;
  batch.ids = at::randint(0, shape.config.vocab_size, {rows}, at::kLong);
  batch.positions = at::arange(shape.length, at::kLong).repeat({shape.texts});
  std::vector<int64_t> offsets;
  for (int64_t u = 0; u <= shape.texts; ++u) offsets.push_back(u * shape.length);
  batch.segments = std::make_shared<kernels::Segments>(offsets);
  batch.loss_segments = batch.segments;
  batch.targets = at::randint(0, shape.config.vocab_size, {rows}, at::kLong);
  batch.loss_weights = at::full({rows}, 1.0 / static_cast<double>(shape.length), at::kFloat);
  return batch;
}

gpt2::PlannedStep planned(fsdp::Mesh& mesh, const Shape& shape, bool records) {
  gpt2::PlannedStep step;
  step.units = gpt2::planned_units(shape.config, gpt2::unit_specs(shape.config, {}, {}), {}, 1);
  step.shape = {.units = shape.texts,
                .rows_per_unit = shape.length,
                .microbatches = shape.microbatches,
                .shard_ranks = mesh.shape().shard,
                .records = records};
  const auto budget = shape.budget_mib ? std::optional(*shape.budget_mib * (1 << 20)) : std::nullopt;
  step.plan = dp::plan_step(step.units, step.shape, budget);
  if (shape.explain && mesh.rank() == 0) std::cerr << dp::explain(step.plan, step.units, step.shape, budget);
  return step;
}

// Both sides gather alike: the plan's residency is that of the private step.
gpt2::ModelOptions model_options(const gpt2::PlannedStep& step) { return {.residency = gpt2::residency_of(step.plan)}; }

dp::ClipperOptions recording_options(const Shape& shape, const gpt2::PlannedStep& step,
                                     const fsdp::ShardedModel& model) {
  if (shape.recording == dp::RecordingChoice::kAutomatic) return gpt2::clipper_options(step, model);
  return {.recording = shape.recording, .hold_memory_bytes = shape.hold_mib << 20};
}

struct PrivateSide {
  PrivateSide(fsdp::Mesh& mesh, const Shape& shape)
      : step_plan(planned(mesh, shape, true)),
        key(dp::RunKey::from_bytes({}, {})),
        plan(dp::DpPlan::make({.units = 1 << 20,
                               .expected_batch = shape.texts * shape.microbatches * mesh.data_size(),
                               .steps = 1 << 20,
                               .noise_multiplier = accountant::NoiseMultiplier(1.0)})),
        model(mesh, shape.config, {}, model_options(step_plan)),
        clipper(plan.clipper(model.parameters(), recording_options(shape, step_plan, model.parameters()))),
        mechanism(plan.mechanism(model.parameters(), key, nullptr)),
        optimizer(fsdp::make_adamw(model.parameters(), {})) {
    gpt2::initialize(model, 1);
  }
  Stopwatch step(const std::vector<gpt2::TokenBatch>& batches) {
    Stopwatch watch;
    const dp::StepId id{next++};
    auto sum = clipper.begin(mechanism, id);
    {
      const auto resident = model.resident();
      for (const auto& batch : batches) {
        const auto tape = clipper.record(batch.units());
        const at::Tensor loss = model.summed_unit_losses(batch, tape);
        watch.lap(0);
        loss.backward();
        watch.lap(1);
        if (clipper.second_pass(sum, tape)) model.summed_unit_losses(batch, tape).backward();
        clipper.add(sum, tape);
        watch.lap(2);
      }
    }
    auto gradient = mechanism.release(std::move(sum), id);
    watch.lap(3);
    optimizer.step(std::move(gradient), 1e-5);
    watch.lap(4);
    return watch;
  }
  gpt2::PlannedStep step_plan;
  dp::RunKey key;
  dp::DpPlan plan;
  gpt2::Gpt2 model;
  dp::Clipper clipper;
  dp::GaussianMechanism mechanism;
  dp::PrivateOptimizer optimizer;
  int64_t next = 0;
};

struct PlainSide {
  PlainSide(fsdp::Mesh& mesh, const Shape& shape)
      : model(mesh, shape.config, {}, model_options(planned(mesh, shape, true))),
        accumulator(model.parameters(), static_cast<double>(shape.texts * shape.microbatches * mesh.data_size())),
        optimizer(fsdp::make_adamw(model.parameters(), {})) {
    gpt2::initialize(model, 1);
  }
  Stopwatch step(const std::vector<gpt2::TokenBatch>& batches) {
    Stopwatch watch;
    accumulator.begin();
    {
      const auto resident = model.resident();
      for (const auto& batch : batches) {
        const at::Tensor loss = model.summed_unit_losses(batch, accumulator.recorder());
        watch.lap(0);
        loss.backward();
        watch.lap(1);
      }
    }
    const auto& gradient = accumulator.reduce();
    watch.lap(3);
    optimizer->step(gradient, 1e-5);
    watch.lap(4);
    return watch;
  }
  gpt2::Gpt2 model;
  dp::PlainAccumulator accumulator;
  std::unique_ptr<fsdp::Optimizer> optimizer;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Series {
  std::vector<double> totals, processor;
  std::array<std::vector<double>, kPhases> phases;
  void add(const Stopwatch& watch) {
    totals.push_back(watch.total());
    processor.push_back(watch.processor());
    for (int p = 0; p < kPhases; ++p) phases[static_cast<size_t>(p)].push_back(watch.seconds()[static_cast<size_t>(p)]);
  }
  nlohmann::ordered_json json() const {
    nlohmann::ordered_json out = {{"seconds", median(totals)},
                                  {"fastest", *std::min_element(totals.begin(), totals.end())},
                                  {"slowest", *std::max_element(totals.begin(), totals.end())},
                                  {"processor_seconds", median(processor)}};
    for (int p = 0; p < kPhases; ++p) out[kPhaseNames[p]] = median(phases[static_cast<size_t>(p)]);
    return out;
  }
};

double peak_memory_mib() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// One step on each command, as bench/step_peers.py asks for them in turn with other engines.
void serve(fsdp::Mesh& mesh, std::optional<PrivateSide>& with, std::optional<PlainSide>& without,
           const std::vector<gpt2::TokenBatch>& batches) {
  const std::vector<std::string> commands = {"quit", "private", "plain"};
  while (true) {
    const at::Tensor command = at::zeros({1}, at::kLong);
    std::string word;
    if (mesh.rank() == 0 && std::getline(std::cin, word)) {
      command.fill_(std::find(commands.begin(), commands.end(), word) - commands.begin());
    }
    if (mesh.world_size() > 1) mesh.control().broadcast(command, 0);
    const auto chosen = command.item<int64_t>();
    Stopwatch watch;
    if (chosen == 1 && with) {
      watch = with->step(batches);
    } else if (chosen == 2 && without) {
      watch = without->step(batches);
    } else {
      return;
    }
    mesh.control().barrier();
    if (mesh.rank() == 0) std::printf("%.6f %.6f %.1f\n", watch.total(), watch.processor(), peak_memory_mib());
    std::fflush(stdout);
  }
}

Shape parse(int argc, char** argv) {
  Shape s;
  std::string recording = "automatic";
  CLI::App app{"A private training step beside the same step without privacy, interleaved."};
  app.add_option("--layers", s.config.n_layer)->capture_default_str();
  app.add_option("--width", s.config.n_embd)->capture_default_str();
  app.add_option("--heads", s.config.n_head)->capture_default_str();
  app.add_option("--vocab", s.config.vocab_size)->capture_default_str();
  app.add_flag(
      "--untied", [&](int64_t) { s.config.tie_word_embeddings = false; }, "A head of its own");
  app.add_option("--length", s.length, "Tokens in a text")->capture_default_str();
  app.add_option("--texts", s.texts, "Texts in a microbatch, on each rank")->capture_default_str();
  app.add_option("--microbatches", s.microbatches)->capture_default_str();
  app.add_option("--repeats", s.repeats)->capture_default_str();
  app.add_option("--recording", recording)
      ->check(CLI::IsMember({"automatic", "hold", "replay"}))
      ->capture_default_str();
  app.add_option("--memory-budget", s.budget_mib, "MiB, as the training program's");
  app.add_flag("--explain-plan", s.explain);
  app.add_option("--hold-mib", s.hold_mib)->capture_default_str();
  app.add_flag("--serve", s.serve,
               "Rank 0 reads private, plain or quit, and answers with seconds, processor seconds, MiB");
  app.add_option("--only", s.only, "For peak memory")->check(CLI::IsMember({"private", "plain"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));  // NOLINT(concurrency-mt-unsafe): no thread was started yet
  }
  s.config.n_inner = 4 * s.config.n_embd;
  s.config.n_positions = std::max(s.config.n_positions, s.length);
  if (recording == "hold") s.recording = dp::RecordingChoice::kHold;
  if (recording == "replay") s.recording = dp::RecordingChoice::kReplay;
  return s;
}

}  // namespace

int main(int argc, char** argv) try {
  fsdp::reuse_host_memory();  // as the training program does
  const Shape shape = parse(argc, argv);
  const auto mesh = fsdp::Mesh::from_environment(std::chrono::seconds(300));
  std::optional<PrivateSide> with;
  std::optional<PlainSide> without;
  if (shape.only != "plain") with.emplace(*mesh, shape);
  if (shape.only != "private") without.emplace(*mesh, shape);
  std::vector<gpt2::TokenBatch> batches;
  for (int64_t m = 0; m < shape.microbatches; ++m) batches.push_back(random_batch(shape, 100 * mesh->rank() + m));

  if (shape.serve) {
    serve(*mesh, with, without, batches);
    return 0;
  }
  Series private_steps, plain_steps;
  std::vector<double> ratios, processor_ratios;
  for (int64_t i = 0; i <= shape.repeats; ++i) {  // the first round warms up
    // Pairs in alternating order, so that drift of the machine hits both alike.
    Stopwatch p, q;
    const auto run_private = [&] {
      if (with) p = with->step(batches);
    };
    const auto run_plain = [&] {
      if (without) q = without->step(batches);
    };
    mesh->control().barrier();
    if (i % 2 == 0) {
      run_private();
      mesh->control().barrier();
      run_plain();
    } else {
      run_plain();
      mesh->control().barrier();
      run_private();
    }
    if (i == 0) continue;
    if (with) private_steps.add(p);
    if (without) plain_steps.add(q);
    if (with && without) {
      ratios.push_back(q.total() / p.total());
      processor_ratios.push_back(q.processor() / p.processor());
    }
  }
  if (mesh->rank() != 0) return 0;
  nlohmann::ordered_json result = {{"layers", shape.config.n_layer},
                                   {"width", shape.config.n_embd},
                                   {"vocab", shape.config.vocab_size},
                                   {"length", shape.length},
                                   {"texts", shape.texts},
                                   {"microbatches", shape.microbatches},
                                   {"ranks", mesh->world_size()},
                                   {"peak_memory_mib", std::round(peak_memory_mib())}};
  result["parameters"] =
      with ? with->model.parameters().parameter_count() : without->model.parameters().parameter_count();
  if (with) result["private"] = private_steps.json();
  if (without) result["plain"] = plain_steps.json();
  if (!ratios.empty()) {
    result["throughput_private_over_plain"] = median(ratios);
    result["processor_time_plain_over_private"] = median(processor_ratios);
  }
  std::cout << result.dump(2) << '\n';
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
