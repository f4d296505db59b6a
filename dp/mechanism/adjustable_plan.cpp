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
}

void AdjustablePlan::set_terms(accountant::ClipNorm clip_norm,
                               std::optional<accountant::NoiseMultiplier> noise_multiplier) {
  terms_->clip_norm = clip_norm;
  terms_->noise_multiplier = noise_multiplier;
  terms_->event.reset();
  if (!noise_multiplier) return;
  if (config_.sampling_rate.value() == 1) {
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
  return {model, key, ledger, config_.divisor, identity_};
}

}  // namespace ghostshard::dp
