// One training step with privacy beside the same step without, interleaved in one process: seconds, tokens a second,
// their ratio, the time of each phase, and on a device the memory of each. On the CPU peak memory needs a process each
// (--only). Run it alone or under `torchrun --no-python`.
//
//   step_compare --layers 12 --width 768 --vocab 50257 --length 100 --texts 8 --microbatches 4 --repeats 5
//   step_compare --device cuda --model 124M --compute-dtype bfloat16 --length 1024

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/step_compare/device_memory.h"
#include "bench/step_compare/sides.h"
#include "bench/step_compare/trace.h"
#include "dp/planning/step_plan.h"
#include "examples/gpt2/throughput.h"
#include "fsdp/device_name.h"
#include "fsdp/host_memory.h"

namespace {

using namespace ghostshard;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One side: its model, the times of its steps, and on a device its memory.
template <typename Side>
class Measured {
 public:
  Measured(fsdp::Mesh& mesh, const gpt2::Shape& shape, const gpt2::PlannedStep& step) : memory_(mesh.device()) {
    memory_.begin();
    side_.emplace(mesh, shape, step);
    memory_.end();
  }
  gpt2::Stopwatch step(const std::vector<gpt2::TokenBatch>& batches) {
    memory_.begin();
    gpt2::Stopwatch watch = side_->step(batches);
    memory_.end();
    return watch;
  }
  void add(const gpt2::Stopwatch& watch) {
    totals_.push_back(watch.total());
    processor_.push_back(watch.processor());
    for (size_t p = 0; p < gpt2::kPhases; ++p) phases_[p].push_back(watch.seconds()[p]);
  }
  Side& side() { return *side_; }
  double peak_mib() const { return memory_.peak_mib(); }
  double seconds() const { return median(totals_); }
  nlohmann::ordered_json json() const {
    nlohmann::ordered_json out = {{"seconds", seconds()},
                                  {"fastest", *std::min_element(totals_.begin(), totals_.end())},
                                  {"slowest", *std::max_element(totals_.begin(), totals_.end())},
                                  {"processor_seconds", median(processor_)}};
    for (size_t p = 0; p < gpt2::kPhases; ++p) out[gpt2::kPhaseNames[p]] = median(phases_[p]);
    return out;
  }

 private:
  gpt2::OwnMemory memory_;
  std::optional<Side> side_;
  std::vector<double> totals_, processor_;
  std::array<std::vector<double>, gpt2::kPhases> phases_;
};

struct Sides {
  std::optional<Measured<gpt2::PrivateSide>> with;
  std::optional<Measured<gpt2::PlainSide>> without;
};

// One step for each command: bench/step_peers.py interleaves them with other engines'.
void serve(fsdp::Mesh& mesh, Sides& sides, const std::vector<gpt2::TokenBatch>& batches) {
  const std::vector<std::string> commands = {"quit", "private", "plain"};
  while (true) {
    const at::Tensor command = at::zeros({1}, at::kLong);
    std::string word;
    if (mesh.rank() == 0 && std::getline(std::cin, word)) {
      command.fill_(std::find(commands.begin(), commands.end(), word) - commands.begin());
    }
    if (mesh.world_size() > 1) mesh.control().broadcast(command, 0);
    const auto chosen = command.item<int64_t>();
    const auto answer = [&](auto& side) {
      const gpt2::Stopwatch watch = side.step(batches);
      mesh.control().barrier();
      const double mib = mesh.device().is_cpu() ? fsdp::peak_host_memory_mib() : side.peak_mib();
      if (mesh.rank() == 0) std::printf("%.6f %.6f %.1f\n", watch.total(), watch.processor(), mib);
      std::fflush(stdout);
    };
    if (chosen == 1 && sides.with) {
      answer(*sides.with);
    } else if (chosen == 2 && sides.without) {
      answer(*sides.without);
    } else {
      return;
    }
  }
}

nlohmann::ordered_json front(const gpt2::PlannedStep& step) {
  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  for (const dp::StepPlan& plan : dp::plan_front(step.blocks, step.shape)) {
    plans.push_back({{"peak_bytes", plan.peak_bytes()}, {"seconds", plan.seconds()}, {"change", plan.change}});
  }
  return plans;
}

struct Ratios {
  std::vector<double> throughput, processor;
};

// Pairs in alternating order, so that drift of the machine hits both alike. The first round warms up.
Ratios measure(fsdp::Mesh& mesh, const gpt2::Shape& shape, Sides& sides, const std::vector<gpt2::TokenBatch>& batches) {
  Ratios ratios;
  for (int64_t i = 0; i <= shape.repeats; ++i) {
    std::optional<gpt2::Stopwatch> p, q;
    for (const bool with : {i % 2 == 0, i % 2 != 0}) {
      mesh.control().barrier();
      if (with && sides.with) p = sides.with->step(batches);
      if (!with && sides.without) q = sides.without->step(batches);
    }
    if (i == 0) continue;
    if (p) sides.with->add(*p);
    if (q) sides.without->add(*q);
    if (p && q) {
      ratios.throughput.push_back(q->total() / p->total());
      ratios.processor.push_back(q->processor() / p->processor());
    }
  }
  return ratios;
}

template <typename Side>
nlohmann::ordered_json side_json(const Measured<Side>& side, const gpt2::Shape& shape, const fsdp::Mesh& mesh,
                                 std::optional<double> peak_tflops) {
  nlohmann::ordered_json out = side.json();
  const gpt2::MeasuredStep step{.tokens = shape.tokens_of(mesh.world_size()),
                                .length = shape.length,
                                .ranks = mesh.world_size(),
                                .seconds = side.seconds()};
  const gpt2::Throughput reached = gpt2::throughput(shape.config, step, peak_tflops);
  out["tokens_per_second"] = reached.tokens_per_second;
  out["model_tflops"] = reached.model_tflops;
  if (reached.mfu) out["mfu"] = *reached.mfu;
  if (!mesh.device().is_cpu()) out["peak_memory_mib"] = std::round(side.peak_mib());
  return out;
}

nlohmann::ordered_json result(const fsdp::Mesh& mesh, const gpt2::Shape& shape, Sides& sides, const Ratios& ratios) {
  const std::string device = fsdp::device_name(mesh.device());
  const auto peak_tflops =
      shape.peak_tflops ? shape.peak_tflops : gpt2::listed_peak_tflops(device, shape.compute_dtype);
  nlohmann::ordered_json out = {{"device", device},
                                {"commit", shape.commit},
                                {"layers", shape.config.n_layer},
                                {"width", shape.config.n_embd},
                                {"heads", shape.config.n_head},
                                {"vocab", shape.config.vocab_size},
                                {"length", shape.length},
                                {"texts", shape.texts},
                                {"microbatches", shape.microbatches},
                                {"ranks", mesh.world_size()},
                                {"repeats", shape.repeats},
                                {"compute_dtype", shape.compute_dtype == at::kFloat ? "float32" : "bfloat16"},
                                {"model_flops_per_token", gpt2::model_flops_per_token(shape.config, shape.length)}};
  if (peak_tflops) out["peak_tflops"] = *peak_tflops;
  if (mesh.device().is_cpu()) out["peak_memory_mib"] = std::round(fsdp::peak_host_memory_mib());
  out["parameters"] = sides.with ? sides.with->side().parameters() : sides.without->side().parameters();
  if (sides.with) out["private"] = side_json(*sides.with, shape, mesh, peak_tflops);
  if (sides.without) out["plain"] = side_json(*sides.without, shape, mesh, peak_tflops);
  if (!ratios.throughput.empty()) {
    out["throughput_private_over_plain"] = median(ratios.throughput);
    out["processor_time_plain_over_private"] = median(ratios.processor);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  fsdp::reuse_host_memory();  // as the training program does
  const gpt2::Shape shape = gpt2::parse_shape(argc, argv);
  const auto mesh = fsdp::Mesh::from_environment(std::chrono::seconds(300), std::nullopt, shape.device);
  Sides sides;
  const gpt2::PlannedStep step = gpt2::planned(*mesh, shape);
  if (shape.front) {
    if (mesh->rank() == 0) std::cout << front(step).dump() << '\n';
    return 0;
  }
  if (shape.only != "plain") sides.with.emplace(*mesh, shape, step);
  if (shape.only != "private") sides.without.emplace(*mesh, shape, step);
  const auto batches = gpt2::random_batches(shape, *mesh);
  if (shape.serve) {
    serve(*mesh, sides, batches);
    return 0;
  }
  const Ratios ratios = measure(*mesh, shape, sides, batches);
  if (!shape.trace.empty()) {
    const auto traced = [&](auto& side, const std::string& name) {
      const std::string rank = mesh->world_size() > 1 ? "." + std::to_string(mesh->rank()) : "";
      if (side)
        gpt2::trace(mesh->device().is_cuda(), shape.trace + name + rank + ".json", [&] { side->step(batches); });
    };
    traced(sides.with, ".private");
    traced(sides.without, ".plain");
  }
  if (mesh->rank() != 0) return 0;
  const std::string text = result(*mesh, shape, sides, ratios).dump(2) + "\n";
  std::cout << text;
  if (!shape.output.empty() && !(std::ofstream(shape.output) << text).flush()) {
    throw std::runtime_error("--output " + shape.output + " cannot be written");
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
