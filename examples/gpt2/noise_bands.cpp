#include "examples/gpt2/noise_bands.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "dp/planning/band_coefficients.h"
#include "examples/gpt2/optimizer_names.h"

namespace ghostshard::gpt2 {
namespace {

constexpr double kAdamMomentum = 0.9;  // beta1 of fsdp/optimizer.h
constexpr double kMuonMomentum = 0.95;

}  // namespace

void add_noise_bands(CLI::Option_group* group, Options& options) {
  group
      ->add_option("--noise-bands", options.noise_bands,
                   "b > 1: each step's noise takes back part of the b-1 steps' before, and each step draws from one of "
                   "b groups of texts; b-1 more floats for each trained weight that a rank owns")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
}

void check_noise_bands(const Options& options) {
  if (options.noise_bands > 1 && options.non_private) {
    throw std::invalid_argument("--noise-bands correlates the noise of private steps: --non-private has none");
  }
}

dp::NoiseBands noise_bands(const Options& options, const fsdp::LearningRateSchedule& rate) {
  dp::NoiseBands bands;
  if (options.noise_bands == 1) return bands;
  if (options.noise_bands > rate.steps) {
    throw std::invalid_argument("--noise-bands must be at most the run's " + std::to_string(rate.steps) +
                                " steps, got " + std::to_string(options.noise_bands));
  }
  double momentum = kAdamMomentum;
  if (options.optimizer == kSgd) momentum = options.momentum.value_or(0);
  if (options.optimizer == kMuon) momentum = options.momentum.value_or(kMuonMomentum);
  dp::BandWorkload workload{.rates = {}, .momentum = momentum};
  for (int64_t step = 0; step < rate.steps; ++step) workload.rates.push_back(rate.at(step));
  for (const double ratio : dp::optimal_band_ratios(options.noise_bands, workload)) {
    bands.ratios.push_back(static_cast<float>(ratio));
  }
  return bands;
}

}  // namespace ghostshard::gpt2
