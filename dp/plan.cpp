#include "dp/plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/calibration.h"
#include "kernels/norm_parts.h"

namespace ghostshard::dp {
namespace {

void require(bool holds, const std::string& rule, int64_t value) {
  if (!holds) throw std::invalid_argument(rule + ", got " + std::to_string(value));
}

uint64_t next_identity() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

accountant::SamplingRate rate(const DpConfig& config) {
  return accountant::SamplingRate(static_cast<double>(config.expected_batch) / static_cast<double>(config.units));
}

}  // namespace

accountant::Delta default_delta(int64_t units) {
  require(units >= 1, "the number of units must be >= 1", units);
  return accountant::Delta(std::min(1e-6, std::pow(static_cast<double>(units), -1.1)));
}

DpPlan::DpPlan(DpConfig config, accountant::NoiseMultiplier sigma, accountant::Delta delta)
    : config_(std::move(config)), sigma_(sigma), delta_(delta), identity_(next_identity()) {}

DpPlan DpPlan::make(const DpConfig& config) {
  require(config.units >= 1, "the number of units must be >= 1", config.units);
  require(config.steps >= 1, "steps must be >= 1", config.steps);
  require(config.expected_batch >= 1, "the expected batch must be >= 1", config.expected_batch);
  require(config.expected_batch <= config.units,
          "the expected batch must be at most the number of units (" + std::to_string(config.units) + ")",
          config.expected_batch);
  if (config.target_epsilon.has_value() == config.noise_multiplier.has_value()) {
    throw std::invalid_argument("exactly one of target epsilon and noise multiplier must be given");
  }
  const accountant::Delta delta = config.delta.value_or(default_delta(config.units));
  const accountant::NoiseMultiplier sigma =
      config.noise_multiplier ? *config.noise_multiplier
                              : accountant::calibrate_noise(config.accountant, config.adjacency, *config.target_epsilon,
                                                            delta, rate(config), config.steps);
  return {config, sigma, delta};
}

accountant::SamplingRate DpPlan::sampling_rate() const { return rate(config_); }

accountant::Event DpPlan::event() const { return accountant::PoissonGaussianEvent{sampling_rate(), sigma_}; }

std::unique_ptr<accountant::Accountant> DpPlan::accountant() const {
  return accountant::make_accountant(config_.accountant, config_.adjacency);
}

accountant::EpsilonBound DpPlan::epsilon_after(int64_t steps) const {
  const auto engine = accountant();
  engine->compose(event(), steps);
  return engine->epsilon(delta_);
}

PoissonSampler DpPlan::sampler(const RunKey& key, int64_t rank, int64_t world_size) const {
  return {key, config_.units, config_.expected_batch, rank, world_size};
}

Clipper DpPlan::clipper(fsdp::ShardedModel& model, const ClipperOptions& options) const {
  return {model, config_.clip_norm, options, identity_};
}

GaussianMechanism DpPlan::mechanism(fsdp::ShardedModel& model, const RunKey& key,
                                    accountant::LedgerWriter* ledger) const {
  return {model, key, ledger, event(), sigma_.value() * config_.clip_norm.value(), divisor(), identity_};
}

nlohmann::json DpPlan::ledger_header(const RunKey& key) const {
  return {{"run_id", key.run_id_hex()},
          {"adjacency", accountant::to_string(config_.adjacency)},
          {"unit_of_privacy", config_.unit_of_privacy},
          {"units", config_.units},
          {"expected_batch", config_.expected_batch},
          {"sampling_rate", sampling_rate().value()},
          {"sampler", "poisson"},
          {"noise_multiplier", sigma_.value()},
          {"clip_norm", config_.clip_norm.value()},
          {"clipping", "flat, per unit, over all trainable parameters"},
          {"divisor", divisor()},
          {"delta", delta_.value()},
          {"planned_steps", config_.steps}};
}

double DpPlan::rounding_slack(int64_t additions) {
  return 2.0 * static_cast<double>(additions) * kernels::gamma_float32(additions);
}

}  // namespace ghostshard::dp
