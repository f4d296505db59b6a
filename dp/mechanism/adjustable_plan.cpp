#include "dp/mechanism/adjustable_plan.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace ghostshard::dp {

AdjustablePlan::AdjustablePlan(const Config& config)
    : config_(config), terms_(std::make_shared<StepTerms>()), identity_(next_plan_identity()) {
  if (!(config.divisor > 0 && std::isfinite(config.divisor))) {
    throw std::invalid_argument("the divisor must be positive and finite, got " + std::to_string(config.divisor));
  }
  if (config.clip_quantile && !(config.expected_batch > 0 && std::isfinite(config.expected_batch))) {
    throw std::invalid_argument("a clip norm that adapts needs the expected batch, got " +
                                std::to_string(config.expected_batch));
  }
  if (config.clip_quantile && config.clipping != Clipping::kFlat) {
    throw std::invalid_argument("a clip norm that adapts is that of whole gradients: it needs flat clipping");
  }
  if (config.largest_batch && config.clip_quantile) {
    throw std::invalid_argument(
        "a clip norm that adapts is accounted for batches that are not truncated: it cannot be combined with a largest "
        "batch");
  }
  check_correlation();
  if (!config.bins) return;
  if (!(*config.bins >= 1 && *config.bins <= accountant::kMostBins)) {
    throw std::invalid_argument("balls-in-bins sampling must have from 1 to " + std::to_string(accountant::kMostBins) +
                                " steps in a pass, got " + std::to_string(*config.bins));
  }
  if (config.clip_quantile || config.largest_batch) {
    throw std::invalid_argument(
        "balls-in-bins sampling is derived for one clip norm in all steps of a pass and takes every unit of a bin: it "
        "cannot be combined with a clip norm that adapts, nor with a largest batch");
  }
  terms_->passes = BinPasses{.steps = *config.bins};
}

void AdjustablePlan::check_correlation() const {
  config_.correlation.check();
  if (config_.correlation.blt.is_on()) {
    throw std::invalid_argument(
        "noise buffers need a plan that knows the run's steps and its sampler (dp/mechanism/plan.h)");
  }
  if (groups() == 1) return;
  if (config_.clip_quantile || config_.largest_batch || config_.bins) {
    throw std::invalid_argument(
        "correlated noise is derived for Poisson samples of whole batches and for one clip norm in all steps: it "
        "cannot be combined with a clip norm that adapts, a largest batch or balls-in-bins sampling");
  }
}

int64_t AdjustablePlan::steps_until(int64_t group, int64_t step) const {
  if (groups() == 1) throw std::logic_error("groups of units are those of correlated noise");
  if (!(group >= 0 && group < groups())) {
    throw std::invalid_argument("groups of units are from 0 to " + std::to_string(groups() - 1) + ", got " +
                                std::to_string(group));
  }
  return (group - step % groups() + groups()) % groups();
}

void AdjustablePlan::check_terms(accountant::ClipNorm clip_norm,
                                 std::optional<accountant::NoiseMultiplier> noise_multiplier) const {
  if (groups() == 1) return;
  if (!noise_multiplier) throw std::invalid_argument("correlated noise needs a noise multiplier, got none");
  const bool alike = !terms_->noise_multiplier || (terms_->clip_norm.value() == clip_norm.value() &&
                                                   terms_->noise_multiplier->value() == noise_multiplier->value());
  if (alike) return;
  throw std::invalid_argument(
      "correlated noise is derived for one clip norm and one noise multiplier in all steps: they were " +
      std::to_string(terms_->clip_norm.value()) + " and " + std::to_string(terms_->noise_multiplier->value()) +
      ", now they are " + std::to_string(clip_norm.value()) + " and " + std::to_string(noise_multiplier->value()));
}

void AdjustablePlan::begin_pass_at(int64_t step) {
  if (!terms_->passes) throw std::logic_error("passes are those of balls-in-bins sampling");
  terms_->passes->first = step;
}

bool AdjustablePlan::same_pass(const StepId& step, const StepId& other) const {
  return terms_->passes && terms_->passes->pass_of(step).step == terms_->passes->pass_of(other).step;
}

void AdjustablePlan::set_terms(accountant::ClipNorm clip_norm,
                               std::optional<accountant::NoiseMultiplier> noise_multiplier) {
  check_terms(clip_norm, noise_multiplier);
  if (const auto& quantile = config_.clip_quantile) {
    quantile->check(clip_norm);
    if (!noise_multiplier) throw std::invalid_argument("a clip norm that adapts needs noise, got none");
    const accountant::NoiseMultiplier sigma = quantile->gradient_noise(*noise_multiplier);
    *terms_ = {.clip_norm = clip_norm,
               .noise_multiplier = sigma,
               .count_noise = quantile->count_noise,
               .event = accountant::AdaptiveClippingEvent{config_.sampling_rate, sigma, quantile->count_noise}};
    return;
  }
  terms_->clip_norm = clip_norm;
  terms_->noise_multiplier = noise_multiplier;
  terms_->event.reset();
  if (!noise_multiplier) return;
  if (config_.bins) {
    terms_->event = accountant::BallsInBinsGaussianEvent{*config_.bins, *noise_multiplier};
  } else if (const auto& largest = config_.largest_batch) {
    terms_->event = accountant::TruncatedPoissonGaussianEvent{largest->first, config_.sampling_rate, largest->second,
                                                              *noise_multiplier};
  } else if (config_.sampling_rate.value() == 1 && groups() == 1) {
    terms_->event = accountant::GaussianEvent{*noise_multiplier};
  } else {
    terms_->event = accountant::PoissonGaussianEvent{config_.sampling_rate, *noise_multiplier};
  }
}

Clipper AdjustablePlan::clipper(fsdp::GroupedParameters& model, const ClipperOptions& options) const {
  return {model, terms_, config_.clipping, options, identity_};
}

GaussianMechanism AdjustablePlan::mechanism(fsdp::GroupedParameters& model, const RunKey& key,
                                            accountant::LedgerWriter* ledger) const {
  std::optional<ClipAdaptation> adaptation;
  if (config_.clip_quantile) adaptation = {*config_.clip_quantile, terms_, config_.expected_batch};
  return {model, key, ledger, config_.divisor, identity_, config_.correlation, std::move(adaptation)};
}

}  // namespace ghostshard::dp
