#include "dp/mechanism/plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/calibration.h"
#include "dp/mechanism/plan_rules.h"
#include "kernels/scaled_sum.h"

namespace ghostshard::dp {
namespace {

// B·b/n rounded up: the coins' probability is floor(B·b·2^64/n)/2^64 (dp/mechanism/sampler.h), which may lie above the
// nearest double. Of a truncated sample it is the coins' own rate.
accountant::SamplingRate rate(const DpConfig& config) {
  const double batch = static_cast<double>(config.expected_batch * config.groups());
  const double units = static_cast<double>(config.units);
  const double nearest = batch / units;
  if (config.maximum_batch) return coin_rate(accountant::SamplingRate(nearest));
  return accountant::SamplingRate(std::fma(nearest, units, -batch) < 0 ? std::nextafter(nearest, 1.0) : nearest);
}

accountant::Event sampled_gaussian(const DpConfig& config, accountant::NoiseMultiplier sigma) {
  if (!config.maximum_batch) return accountant::PoissonGaussianEvent{rate(config), sigma};
  return accountant::TruncatedPoissonGaussianEvent{config.units, rate(config), *config.maximum_batch, sigma};
}

// sigma, of the noise that gradients get, so that a step costs what one release with the noise multiplier `whole` does.
accountant::NoiseMultiplier gradient_noise(const DpConfig& config, accountant::NoiseMultiplier whole) {
  return config.clip_quantile ? config.clip_quantile->gradient_noise(whole) : whole;
}

// Of the group with the most: the first one.
int64_t rounds_of_steps(const DpConfig& config) {
  return accountant::Rounds(config.groups()).most_after(0, config.steps);
}

accountant::NoiseMultiplier calibrated(const DpConfig& config, accountant::Delta delta) {
  const accountant::Budget budget{config.accountant, config.adjacency, *config.target_epsilon, delta};
  if (config.noise_blt.is_on()) {
    return accountant::calibrate_noise(
        budget, [](accountant::NoiseMultiplier sigma) { return accountant::GaussianEvent{sigma}; }, 1);
  }
  if (!in_bins(config)) {
    return accountant::calibrate_noise(
        budget, [&](accountant::NoiseMultiplier sigma) { return sampled_gaussian(config, sigma); },
        rounds_of_steps(config));
  }
  const int64_t bins = bins_of(config);
  return accountant::calibrate_bins_noise(budget, bins, (config.steps + bins - 1) / bins);
}

// The chain that a run began with, as its bands.
NoiseChain chain_of(const nlohmann::json& header, const NoiseChain& planned) {
  const auto begun = header.find("noise_chain");
  if (begun == header.end() || !begun->is_object() || begun->value("steps", nlohmann::json()) != planned.steps) {
    return planned;
  }
  const nlohmann::json decay = begun->value("decay", nlohmann::json());
  return {.steps = planned.steps, .decay = decay.is_number() ? decay.get<float>() : planned.decay};
}

// The buffers that a run began with: another machine's might differ in the last digit.
NoiseBlt blt_of(const nlohmann::json& header, const NoiseBlt& planned) {
  const auto begun = header.find("noise_blt");
  if (begun == header.end() || !begun->is_object()) return planned;
  const auto numbers = [&](const char* name) -> std::vector<float> {
    const nlohmann::json stated = begun->value(name, nlohmann::json());
    const bool fits = stated.is_array() && stated.size() == planned.outputs.size() &&
                      std::all_of(stated.begin(), stated.end(), [](const auto& each) { return each.is_number(); });
    return fits ? stated.get<std::vector<float>>() : std::vector<float>{};
  };
  const NoiseBlt found{.outputs = numbers("outputs"), .decays = numbers("decays")};
  return found.outputs.size() == found.decays.size() && found.is_on() ? found : planned;
}

// The bands that a run began with: another machine's might differ in the last digit.
NoiseBands bands_of(const nlohmann::json& header, const NoiseBands& planned) {
  const auto begun = header.find("noise_bands");
  if (begun == header.end() || !begun->is_array() || begun->size() != planned.ratios.size() + 1) return planned;
  NoiseBands bands;
  for (size_t k = 1; k < begun->size(); ++k) {
    if (!begun->at(k).is_number()) return planned;
    bands.ratios.push_back(begun->at(k).get<float>());
  }
  return bands;
}

}  // namespace

uint64_t next_plan_identity() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

accountant::Delta default_delta(int64_t units) {
  if (units < 1) throw std::invalid_argument("the number of units must be >= 1, got " + std::to_string(units));
  return accountant::Delta(std::min(1e-6, std::pow(static_cast<double>(units), -1.1)));
}

DpPlan::DpPlan(DpConfig config, accountant::NoiseMultiplier sigma, accountant::Delta delta)
    : config_(std::move(config)),
      sigma_(sigma),
      delta_(delta),
      terms_(std::make_shared<StepTerms>(
          StepTerms{.clip_norm = config_.clip_norm, .noise_multiplier = sigma, .event = event()})),
      identity_(next_plan_identity()) {
  if (config_.noise_blt.is_on()) {
    config_.noise_blt.separation = bins_of(config_);
    config_.noise_blt.steps = config_.steps;
    rows_ = std::make_shared<const accountant::BltRows>(config_.noise_blt.rows());
  }
  if (in_bins(config_)) terms_->passes = BinPasses{.steps = bins_of(config_)};
  if (config_.clip_quantile) terms_->count_noise = config_.clip_quantile->count_noise;
}

DpPlan DpPlan::make(const DpConfig& config) {
  check_constants(config);
  const accountant::Delta delta = config.delta.value_or(default_delta(config.units));
  const accountant::NoiseMultiplier whole =
      config.noise_multiplier ? *config.noise_multiplier : calibrated(config, delta);
  DpPlan plan(config, gradient_noise(config, whole), delta);
  if (!(config.clip_quantile || config.noise_blt.is_on()) || !config.target_epsilon) return plan;
  // Calibrated for one Gaussian; the bound on all parts together may differ in its last digits.
  for (double more = 0x1p-30; plan.epsilon_after(config.steps).upper > config.target_epsilon->value(); more *= 8) {
    plan = {config, gradient_noise(config, accountant::NoiseMultiplier(whole.value() * (1 + more))), delta};
  }
  return plan;
}

DpPlan DpPlan::resume(const DpConfig& given, const accountant::LedgerContents& ledger) {
  check_constants(given);
  DpConfig config = given;
  config.noise_bands = bands_of(ledger.header, given.noise_bands);
  config.noise_chain = chain_of(ledger.header, given.noise_chain);
  if (given.noise_blt.is_on()) config.noise_blt = blt_of(ledger.header, given.noise_blt);
  check_constants(config);
  const auto sigma = ledger.header.find("noise_multiplier");
  if (sigma == ledger.header.end() || !sigma->is_number()) {
    throw std::invalid_argument("the ledger's header must have the run's noise_multiplier");
  }
  const DpPlan plan(config,
                    config.noise_multiplier ? gradient_noise(config, *config.noise_multiplier)
                                            : accountant::NoiseMultiplier(sigma->get<double>()),
                    config.delta.value_or(default_delta(config.units)));
  const nlohmann::json own = plan.public_constants();
  if (!own.contains("target_epsilon") && ledger.header.contains("target_epsilon")) {
    throw std::invalid_argument("a run goes on under the plan it began with: the ledger's target_epsilon is " +
                                ledger.header.at("target_epsilon").dump() + ", here none is given");
  }
  if (!config.clip_quantile && ledger.header.contains("clip_quantile")) {
    throw std::invalid_argument(
        "a run goes on under the plan it began with: the ledger's clip norm adapts, here it "
        "does not");
  }
  const auto compare = [&](const std::string& name) {
    const nlohmann::json begun = ledger.header.value(name, nlohmann::json());
    const nlohmann::json here = own.value(name, nlohmann::json());
    if (begun != here) {
      throw std::invalid_argument("a run goes on under the plan it began with: the ledger's " + name + " is " +
                                  begun.dump() + ", here it would be " + here.dump());
    }
  };
  for (const char* cause : {"maximum_batch", "sampler", "units", "expected_batch", "planned_steps"})
    compare(cause);  // before the constants that follow from them
  for (const auto& constant : own.items()) compare(constant.key());
  if (plan.rows_) {
    (void)accountant::blt_rows_of(ledger, {*plan.rows_, plan.sigma_});
    return plan;
  }
  for (const accountant::LedgerEntry& entry : ledger.entries) {
    if (!(entry.event == plan.event())) {
      throw std::invalid_argument("the ledger holds a release that this plan does not make, at sequence " +
                                  std::to_string(entry.sequence) + ": " + accountant::to_json(entry.event).dump());
    }
  }
  return plan;
}

void DpPlan::go_on_with(accountant::ClipNorm clip_norm) {
  if (!config_.clip_quantile) throw std::invalid_argument("the clip norm of this plan does not adapt");
  config_.clip_quantile->check(clip_norm);
  terms_->clip_norm = clip_norm;
}

void DpPlan::begin_session_at(int64_t step) {
  session_first_ = step;
  if (!terms_->passes) return;
  if (terms_->passes_are_drawn) {
    throw std::logic_error("a session begins before its sampler is made: passes are drawn from where it begins");
  }
  terms_->passes->first = step;
}

accountant::SamplingRate DpPlan::sampling_rate() const { return rate(config_); }

double DpPlan::release_variance() const {
  if (config_.clip_quantile) return 0;
  const double deviation = sigma_.value() * config_.clip_norm.value() / divisor();
  return deviation * deviation * config_.noise_bands.variance(config_.steps) * config_.noise_chain.variance() *
         config_.noise_blt.variance();
}

accountant::Event DpPlan::event() const {
  if (in_bins(config_)) return accountant::BallsInBinsGaussianEvent{bins_of(config_), sigma_};
  if (config_.noise_blt.is_on()) return accountant::GaussianEvent{sigma_};
  if (!config_.clip_quantile) return sampled_gaussian(config_, sigma_);
  return accountant::AdaptiveClippingEvent{sampling_rate(), sigma_, config_.clip_quantile->count_noise};
}

accountant::Event DpPlan::event_at(int64_t step) const {
  return rows_ ? accountant::GaussianEvent{rows_->charged(round_of(step), sigma_)} : event();
}

int64_t DpPlan::round_of(int64_t step) const { return rows_ ? step - session_first_ : step; }

void DpPlan::charge(accountant::Accountant& engine, const accountant::Rounds& rounds) const {
  if (!rows_) {
    if (rounds.most() > 0) engine.compose(event(), rounds.most());
    return;
  }
  for (int64_t row = 0; row < rounds.groups(); ++row) {
    const int64_t count = rounds.by_group()[static_cast<size_t>(row)];
    if (count > 0) engine.compose(accountant::GaussianEvent{rows_->charged(row, sigma_)}, count);
  }
}

std::unique_ptr<accountant::Accountant> DpPlan::accountant() const {
  return accountant::make_accountant(config_.accountant, config_.adjacency);
}

accountant::EpsilonBound DpPlan::epsilon_after(int64_t steps) const { return epsilon_after(rounds(), 0, steps); }

accountant::EpsilonBound DpPlan::epsilon_after(const accountant::Rounds& charged, int64_t first, int64_t steps) const {
  const auto engine = accountant();
  if (rows_) {  // those of a chain that begins
    charge(*engine, charged);
    for (int64_t row = 0; row < steps; ++row)
      engine->compose(accountant::GaussianEvent{rows_->charged(row, sigma_)}, 1);
    return engine->epsilon(delta_);
  }
  engine->compose(event(), terms_->passes ? charged.most() + charges_of(steps) : charged.most_after(first, steps));
  return engine->epsilon(delta_);
}

PoissonSampler DpPlan::sampler(const RunKey& key, int64_t rank, int64_t world_size) const {
  std::optional<Truncation> truncation;
  if (config_.maximum_batch) truncation = {.cap = *config_.maximum_batch, .rate = sampling_rate()};
  const int64_t groups = rows_ ? config_.noise_blt.separation : config_.groups();
  PoissonSampler sampler(key, config_.units, config_.expected_batch, rank, world_size, groups, truncation);
  sampler.passes_ = terms_->passes;
  terms_->passes_are_drawn = true;
  return sampler;
}

Clipper DpPlan::clipper(fsdp::GroupedParameters& model, const ClipperOptions& options) const {
  return {model, terms_, config_.clipping, options, identity_};
}

GaussianMechanism DpPlan::mechanism(fsdp::GroupedParameters& model, const RunKey& key,
                                    accountant::LedgerWriter* ledger) const {
  std::optional<ClipAdaptation> adaptation;
  if (config_.clip_quantile) adaptation = {*config_.clip_quantile, terms_, divisor()};
  const NoiseCorrelation correlation{config_.noise_bands, config_.noise_chain, config_.noise_blt,
                                     config_.noise_on_host};
  return {model, key, ledger, divisor(), identity_, correlation, std::move(adaptation)};
}

nlohmann::json DpPlan::public_constants() const {
  nlohmann::json constants = {{"adjacency", accountant::to_string(config_.adjacency)},
                              {"unit_of_privacy", config_.unit_of_privacy},
                              {"units", config_.units},
                              {"expected_batch", config_.expected_batch},
                              {"sampling_rate", sampling_rate().value()},
                              {"sampler", "poisson"},
                              {"noise_multiplier", sigma_.value()},
                              {"clip_norm", config_.clip_norm.value()},
                              {"clipping", to_string(config_.clipping)},
                              {"divisor", divisor()},
                              {"delta", delta_.value()},
                              {"planned_steps", config_.steps}};
  if (config_.target_epsilon) constants["target_epsilon"] = config_.target_epsilon->value();
  if (config_.clip_quantile) constants["clip_quantile"] = to_json(*config_.clip_quantile);
  if (in_bins(config_)) {
    constants["sampler"] = to_string(config_.sampling);
    constants["bins"] = bins_of(config_);
    constants.erase("sampling_rate");
  }
  if (const NoiseBlt& blt = config_.noise_blt; blt.is_on()) {
    constants["sampler"] = "cyclic";
    constants["noise_blt"] = {{"outputs", blt.outputs}, {"decays", blt.decays}, {"separation", blt.separation}};
    constants.erase("sampling_rate");
  }
  if (config_.maximum_batch) {
    constants["sampler"] = "truncated-poisson";
    constants["maximum_batch"] = *config_.maximum_batch;
  }
  if (config_.groups() > 1) {
    constants["sampler"] = "cyclic-poisson";
    constants["sampling_groups"] = config_.groups();
  }
  if (const NoiseBands& bands = config_.noise_bands; bands.count() > 1) {
    constants["noise_bands"] = {1};
    for (const float ratio : bands.ratios) constants["noise_bands"].push_back(static_cast<double>(ratio));
  }
  if (const NoiseChain& chain = config_.noise_chain; chain.steps > 1) {
    constants["noise_chain"] = {{"steps", chain.steps}, {"decay", static_cast<double>(chain.decay)}};
  }
  return constants;
}

nlohmann::json DpPlan::ledger_header(const RunKey& key) const {
  nlohmann::json header = public_constants();
  header["run_id"] = key.run_id_hex();
  header["key"] = key.public_facts();
  return header;
}

accountant::Epsilon DpPlan::promised_epsilon() const {
  return config_.target_epsilon ? *config_.target_epsilon : accountant::Epsilon(epsilon_after(config_.steps).upper);
}

int64_t DpPlan::steps_within(accountant::Epsilon limit, const accountant::Rounds& charged, int64_t first,
                             int64_t steps) const {
  const auto fits = [&](int64_t further) {
    return further == 0 || epsilon_after(charged, first, further).upper <= limit.value();
  };
  if (fits(steps)) return steps;
  int64_t fitting = 0;
  for (int64_t excess = steps; excess - fitting > 1;) {
    const int64_t middle = fitting + (excess - fitting) / 2;
    (fits(middle) ? fitting : excess) = middle;
  }
  return fitting;
}

double DpPlan::rounding_slack(int64_t units) { return 2 * kernels::shared_rounding(units); }

}  // namespace ghostshard::dp
