#include "examples/gpt2/noise_bands.h"

#include <c10/util/accumulate.h>

#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "accountant/blt_rows.h"
#include "dp/planning/band_coefficients.h"
#include "dp/planning/blt_coefficients.h"
#include "dp/planning/chain_decay.h"
#include "fsdp/optimizer.h"

namespace ghostshard::gpt2 {
namespace {

double momentum_of(const ParameterRule& rule, const fsdp::ParameterSpec& spec) {
  const OptimizerOptions& o = rule.optimizer;
  if (o.name == kSgd) return o.momentum.value_or(0);
  const bool muon = o.name == kMuon && rule.takes_as_matrix(spec.name, spec.shape.size());
  if (muon) return o.momentum.value_or(fsdp::MuonOptions().momentum);
  return o.betas ? o.betas->at(0) : fsdp::AdamWOptions().beta1;
}

// The run's rates under each momentum that parameters are trained with, which have the share of their elements. Groups'
// factors of the rate do not matter.
std::vector<dp::WorkloadShare> workloads_of(const ParameterRules& rules, const std::vector<fsdp::BlockSpec>& blocks,
                                            const fsdp::LearningRateSchedule& rate) {
  std::map<double, double> elements;
  for (const fsdp::BlockSpec& block : blocks) {
    for (const fsdp::ParameterSpec& spec : block.parameters) {
      const auto count = static_cast<double>(c10::multiply_integers(spec.shape));
      if (spec.trainable && count > 0) elements[momentum_of(rules.of(spec.name), spec)] += count;
    }
  }
  dp::BandWorkload workload;
  for (int64_t step = 0; step < rate.steps; ++step) workload.rates.push_back(rate.at(step));
  std::vector<dp::WorkloadShare> shares;
  for (const auto& [momentum, count] : elements) {
    workload.momentum = momentum;
    shares.push_back({workload, count});
  }
  return shares;
}

void check_steps(const char* flag, int64_t groups, const fsdp::LearningRateSchedule& rate) {
  if (groups <= rate.steps) return;
  throw std::invalid_argument(std::string(flag) + " must be at most the run's " + std::to_string(rate.steps) +
                              " steps, got " + std::to_string(groups));
}

}  // namespace

void add_noise_bands(CLI::Option_group* group, Options& options) {
  group
      ->add_option("--noise-bands", options.noise_bands,
                   "b > 1: each step's noise takes back part of the b-1 steps' before, and each step draws from one of "
                   "b groups of texts; b-1 more floats for each trained weight that a rank owns")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
  group
      ->add_option("--noise-chain", options.noise_chain,
                   "b > 1: in chains of b steps each step's noise takes back part of the step's before, which is drawn "
                   "again and kept nowhere, and each step draws from one of b groups of texts")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  group
      ->add_option("--noise-blt", options.noise_blt,
                   "d > 0: each step's noise takes back a part of all noise before it, kept in d floats for each "
                   "trained weight that a rank owns (2 to 4 are enough), and text u is in every step t with t = u mod "
                   "ceil(n/B): no coins, so nothing is gained by their secrecy")
      ->check(CLI::Range(int64_t{0}, int64_t{16}))
      ->capture_default_str();
  group->add_flag(
      "--offload-noise", options.offload_noise,
      "With --device cuda: what --noise-bands or --noise-blt keep lies in host memory, and is copied to the "
      "device and back each step");
}

void check_noise_bands(const Options& options) {
  const bool bands = options.noise_bands > 1, chain = options.noise_chain > 1;
  if (bands && chain) throw std::invalid_argument("give one of --noise-bands and --noise-chain");
  const bool blt = options.noise_blt > 0;
  if (blt && (bands || chain)) {
    throw std::invalid_argument("--noise-blt cannot be combined with --noise-bands or --noise-chain: give one of them");
  }
  if (blt && !options.budget_register.empty()) {
    throw std::invalid_argument(
        "--budget-register counts steps that cost the same: it cannot be combined with --noise-blt");
  }
  if (options.offload_noise && (options.device.is_cpu() || !(bands || blt))) {
    throw std::invalid_argument(
        "--offload-noise moves what --noise-bands or --noise-blt keep from a device to host memory: it needs one of "
        "them, and --device cuda");
  }
  const std::pair<const char*, bool> kinds[] = {
      {"--noise-bands", bands}, {"--noise-chain", chain}, {"--noise-blt", blt}};
  for (const auto& [flag, given] : kinds) {
    if (given && options.non_private) {
      throw std::invalid_argument(std::string(flag) + " correlates the noise of private steps: --non-private has none");
    }
  }
}

dp::NoiseBands noise_bands(const Options& options, const ParameterRules& rules,
                           const std::vector<fsdp::BlockSpec>& blocks, const fsdp::LearningRateSchedule& rate) {
  dp::NoiseBands bands;
  if (options.noise_bands == 1) return bands;
  check_steps("--noise-bands", options.noise_bands, rate);
  for (const double ratio : dp::optimal_band_ratios(options.noise_bands, workloads_of(rules, blocks, rate))) {
    bands.ratios.push_back(static_cast<float>(ratio));
  }
  return bands;
}

dp::NoiseChain noise_chain(const Options& options, const ParameterRules& rules,
                           const std::vector<fsdp::BlockSpec>& blocks, const fsdp::LearningRateSchedule& rate) {
  const int64_t steps = options.noise_chain;
  if (steps == 1) return {};
  check_steps("--noise-chain", steps, rate);
  const double decay = dp::optimal_chain_decay(steps, workloads_of(rules, blocks, rate));
  return {.steps = steps, .decay = static_cast<float>(decay)};
}

dp::NoiseBlt noise_blt(const Options& options, const ParameterRules& rules, const std::vector<fsdp::BlockSpec>& blocks,
                       const fsdp::LearningRateSchedule& rate, int64_t separation) {
  if (options.noise_blt == 0) return {};
  if (rate.steps > accountant::BltRows::kMostSteps) {  // before weights are made for each of them
    throw std::invalid_argument("--noise-blt is for runs of at most " +
                                std::to_string(accountant::BltRows::kMostSteps) + " steps, got " +
                                std::to_string(rate.steps));
  }
  const auto found = dp::optimal_blt(options.noise_blt, separation, workloads_of(rules, blocks, rate));
  dp::NoiseBlt blt;
  blt.outputs.assign(found.outputs.begin(), found.outputs.end());
  blt.decays.assign(found.decays.begin(), found.decays.end());
  return blt;
}

}  // namespace ghostshard::gpt2
