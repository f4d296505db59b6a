#include "dp/mechanism/plan_rules.h"

#include <stdexcept>
#include <string>

namespace ghostshard::dp {
namespace {

void require(bool holds, const std::string& rule, int64_t value) {
  if (!holds) throw std::invalid_argument(rule + ", got " + std::to_string(value));
}

bool correlated(const DpConfig& config) { return config.groups() > 1 || config.noise_blt.is_on(); }
std::string correlation(const DpConfig& config) {
  if (config.noise_blt.is_on()) return "noise buffers";
  return config.noise_chain.steps > 1 ? "noise chains" : "noise bands";
}

void check_correlation(const DpConfig& config) {
  NoiseCorrelation{config.noise_bands, config.noise_chain, config.noise_blt}.check();
  if (!correlated(config)) return;
  if (config.adjacency != accountant::Adjacency::kZeroOut) {
    throw std::invalid_argument(correlation(config) + " are accounted under zero-out adjacency alone, got " +
                                accountant::to_string(config.adjacency));
  }
  if (config.noise_blt.is_on()) {
    require(config.steps <= accountant::BltRows::kMostSteps,
            "with noise buffers a run must have at most " + std::to_string(accountant::BltRows::kMostSteps) + " steps",
            config.steps);
    return;
  }
  const int64_t groups = config.groups();
  const std::string counted = config.noise_chain.steps > 1 ? "a noise chain's steps" : "noise bands";
  require(groups <= config.steps, counted + " must be at most the steps (" + std::to_string(config.steps) + ")",
          groups);
  const int64_t most = config.units / config.expected_batch;
  require(groups <= most,
          counted + " must be at most n/B (" + std::to_string(most) +
              "): each step draws its batch from one of as many groups of units",
          groups);
}

void check_quantile(const DpConfig& config) {
  if (!config.clip_quantile) return;
  config.clip_quantile->check(config.clip_norm);
  if (config.clipping != Clipping::kFlat) {
    throw std::invalid_argument("a clip norm that adapts is that of whole gradients: it needs flat clipping, got " +
                                to_string(config.clipping));
  }
  if (correlated(config)) {
    throw std::invalid_argument(
        correlation(config) +
        " are derived for one clip norm in all steps: they cannot be combined with one that adapts");
  }
}

void check_bins(const DpConfig& config) {
  if (!in_bins(config)) return;
  require(bins_of(config) <= accountant::kMostBins,
          "balls-in-bins sampling must have at most " + std::to_string(accountant::kMostBins) + " steps in a pass",
          bins_of(config));
  if (correlated(config)) {
    throw std::invalid_argument("balls-in-bins sampling is derived for white noise: it cannot be combined with " +
                                correlation(config));
  }
  if (config.clip_quantile) {
    throw std::invalid_argument(
        "balls-in-bins sampling is derived for one clip norm in all steps: it cannot be combined with one that adapts");
  }
  if (config.maximum_batch) {
    throw std::invalid_argument(
        "balls-in-bins sampling takes every unit of a bin: it cannot be combined with a largest batch");
  }
  if (config.adjacency == accountant::Adjacency::kReplaceOne) {
    throw std::invalid_argument(
        "balls-in-bins sampling is accounted under zero-out and add-or-remove adjacency, got replace-one");
  }
}

void check_maximum_batch(const DpConfig& config) {
  if (!config.maximum_batch) return;
  const int64_t cap = *config.maximum_batch;
  require(cap >= config.expected_batch,
          "the largest batch must be at least the expected batch (" + std::to_string(config.expected_batch) + ")", cap);
  require(cap <= config.units,
          "the largest batch must be at most the number of units (" + std::to_string(config.units) + ")", cap);
  if (config.adjacency == accountant::Adjacency::kReplaceOne) {
    throw std::invalid_argument("truncated batches are accounted under zero-out or add-or-remove, got replace-one");
  }
  if (correlated(config)) {
    throw std::invalid_argument(
        correlation(config) +
        " are derived for batches that are not truncated: they cannot be combined with a largest batch");
  }
  if (config.clip_quantile) {
    throw std::invalid_argument(
        "a clip norm that adapts is accounted for batches that are not truncated: it cannot be combined with a largest "
        "batch");
  }
}

}  // namespace

bool in_bins(const DpConfig& config) { return config.sampling == Sampling::kBallsInBins; }
int64_t bins_of(const DpConfig& config) { return BinPasses::steps_of(config.units, config.expected_batch); }

void check_constants(const DpConfig& config) {
  require(config.units >= 1, "the number of units must be >= 1", config.units);
  require(config.steps >= 1, "steps must be >= 1", config.steps);
  require(config.expected_batch >= 1, "the expected batch must be >= 1", config.expected_batch);
  require(config.expected_batch <= config.units,
          "the expected batch must be at most the number of units (" + std::to_string(config.units) + ")",
          config.expected_batch);
  if (config.target_epsilon.has_value() == config.noise_multiplier.has_value()) {
    throw std::invalid_argument("exactly one of target epsilon and noise multiplier must be given");
  }
  check_correlation(config);
  check_quantile(config);
  check_bins(config);
  check_maximum_batch(config);
}

}  // namespace ghostshard::dp
