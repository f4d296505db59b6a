// A run of ghostshard-finetune-gpt2's flags whose batches and noise follow from --seed alone, so that two runs that
// differ in one flag can be compared: what differs between them comes from that flag. A key that anybody can compute
// protects nothing: the texts must be declared public, and neither report, ledger nor model is written.
//
//   paired_run FLAGS…       prints {"before": loss, "after": loss} on --eval-data

#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "dp/mechanism/optimizer.h"
#include "dp/mechanism/run_key.h"
#include "dp/run/microbatch.h"
#include "examples/gpt2/evaluate.h"
#include "examples/gpt2/optimizers.h"
#include "examples/gpt2/setup.h"

namespace {

using namespace ghostshard;

dp::RunKey key_of(uint64_t seed) {
  std::array<uint8_t, 32> bytes{};
  std::memcpy(bytes.data(), &seed, sizeof seed);
  return dp::RunKey::from_bytes(bytes, dp::RunId{});
}

gpt2::Inputs public_inputs(const gpt2::Options& o) {
  gpt2::Inputs in = gpt2::read_inputs(o);
  const auto declared = in.data->metadata().find("declared");
  if (declared == in.data->metadata().end() || declared->second != "public") {
    throw std::invalid_argument(o.data +
                                ": the noise of this program protects nothing, --data must be declared public");
  }
  if (!in.budget || !in.eval || in.folder) {
    throw std::invalid_argument("give --model-config, --eval-data, and a budget");
  }
  return in;
}

std::unique_ptr<gpt2::Gpt2> fresh_model(const gpt2::Options& o, const gpt2::Inputs& in, fsdp::Mesh& mesh) {
  auto options = gpt2::model_options(o);
  options.granule = gpt2::granules_of(*in.rules, [&](const gpt2::Granules& granules) {
    auto tried = options;
    tried.granule = granules;
    return std::make_unique<fsdp::ModelLayout>(mesh, gpt2::block_specs(in.config, o.freeze, tried));
  });
  auto model = std::make_unique<gpt2::Gpt2>(mesh, in.config, o.freeze, options);
  gpt2::initialize(*model, o.seed);
  return model;
}

void train(gpt2::Gpt2& model, const gpt2::Options& o, const gpt2::Inputs& in) {
  const auto plan = dp::DpPlan::make(*in.budget);
  auto rule = gpt2::make_optimizer(o, *in.rules, in.config, model.parameters());
  rule->set_error_variance(plan.release_variance());
  dp::PrivateOptimizer optimizer(std::move(rule));
  const dp::RunKey key = key_of(o.seed);
  auto clipper = plan.clipper(model.parameters());
  auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
  const auto sampler = plan.sampler(key, 0, 1);
  for (int64_t step = 0; step < in.steps; ++step) {
    dp::ClippedSum sum = clipper.begin(mechanism, {step});
    {
      const auto resident = model.resident();
      for (const auto& units : sampler.draw_local({step}, o.microbatch, in.data->row_counts())) {
        const gpt2::TokenBatch batch = in.data->batch(units);
        dp::add_microbatch(clipper, sum, batch.units(),
                           [&](const dp::RecorderPtr& recorder) { return model.summed_unit_losses(batch, recorder); });
      }
    }
    optimizer.step(mechanism.release(std::move(sum), {step}), in.rate.at(step));
  }
}

void run(const gpt2::Options& o) {
  const gpt2::Inputs in = public_inputs(o);
  const auto mesh = fsdp::Mesh::single();
  const auto model = fresh_model(o, in, *mesh);
  const double before = gpt2::evaluate(*model, *in.eval, o.microbatch).loss;
  train(*model, o, in);
  const double after = gpt2::evaluate(*model, *in.eval, o.microbatch).loss;
  std::cout << nlohmann::ordered_json{{"before", before}, {"after", after}}.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto options = ghostshard::gpt2::parse_options(argc, argv);
    if (options) run(*options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
