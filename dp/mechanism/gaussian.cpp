#include "dp/mechanism/gaussian.h"

#include <openssl/crypto.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gaussian_tensor.h"

namespace ghostshard::dp {
namespace {

float rounded_up(double value) {
  auto rounded = static_cast<float>(value);
  if (static_cast<double>(rounded) < value) rounded = std::nextafter(rounded, std::numeric_limits<float>::infinity());
  return rounded;
}

}  // namespace

GaussianMechanism::GaussianMechanism(fsdp::GroupedParameters& model, const RunKey& key,
                                     accountant::LedgerWriter* ledger, double divisor, uint64_t plan,
                                     const NoiseCorrelation& correlation, std::optional<ClipAdaptation> adaptation)
    : model_(model),
      key_(&key),
      ledger_(ledger),
      divisor_(divisor),
      plan_(plan),
      slices_(std::make_shared<fsdp::ShardBuffers>(model)),
      rows_(correlation.blt.is_on() ? std::optional(correlation.blt.rows()) : std::nullopt),
      band_norm_(rows_ ? rows_->norm() : correlation.bands.norm()),
      chain_(correlation.chain),
      history_(model, correlation.bands, correlation.on_host),
      buffers_(model, correlation.blt, correlation.on_host),
      adaptation_(std::move(adaptation)),
      reduction_(model, [this](const fsdp::FlatGroup& group) { return noised_slice(group); }) {
  if (ledger != nullptr && model.mesh().rank() != 0) {
    throw std::invalid_argument("the ledger is rank 0's: rank " + std::to_string(model.mesh().rank()) +
                                " must have none");
  }
  key.claim_for_mechanism();
}

bool GaussianMechanism::charged_with_its_pass(const StepId& step, const StepTerms& terms) const {
  if (!terms.passes) return false;
  const StepId pass = terms.passes->pass_of(step);
  if (pass.step == step.step) return false;
  if (!charged_pass_ || charged_pass_->step != pass.step || charged_pass_->attempt != pass.attempt) {
    throw std::logic_error("step " + std::to_string(step.step) + ", attempt " + std::to_string(step.attempt) +
                           " belongs to a pass that was not charged at its first step, " + std::to_string(pass.step));
  }
  const bool alike = terms.event == charged_terms_.event && terms.clip_norm.value() == charged_terms_.clip_norm.value();
  if (!alike) {
    throw std::invalid_argument(
        "clip norm and noise may change between passes of balls-in-bins sampling, not within one: a pass is charged "
        "whole before its first step");
  }
  return true;
}

accountant::Event GaussianMechanism::charged_event(const StepTerms& terms) const {
  if (!terms.event) throw std::invalid_argument("a step without noise cannot be charged");
  if (!rows_) return *terms.event;
  return accountant::GaussianEvent{rows_->charged(row_, terms.noise_multiplier.value())};
}

void GaussianMechanism::charge(const StepId& step, const StepTerms& terms) {
  if (charged_with_its_pass(step, terms)) return;
  charged_pass_.reset();
  // Rank 0 writes and every rank learns the outcome before any of them goes on.
  const at::Tensor written = at::ones({1}, at::kLong);
  std::string reason;
  if (ledger_ != nullptr) {
    try {
      ledger_->append(step.step, step.attempt, charged_event(terms),
                      terms.count_noise ? std::optional(terms.clip_norm) : std::nullopt);
    } catch (const std::exception& error) {
      reason = error.what();
      written.zero_();
    }
  }
  if (model_.mesh().world_size() > 1) model_.mesh().control().broadcast(written, 0);
  if (written.item<int64_t>() != 1) {
    throw std::runtime_error("the ledger could not be written, so nothing of step " + std::to_string(step.step) +
                             " was released" + (reason.empty() ? " (rank 0 has the reason)" : ": " + reason));
  }
  charged_pass_ = step;
  charged_terms_ = terms;
}

void GaussianMechanism::open(const ClippedSum& sum, const StepId& step) {
  if (open_for_ && sum.mechanism_ == this && *open_for_ == sum.serial_) return;
  if (slices_ == nullptr) slices_ = std::make_shared<fsdp::ShardBuffers>(model_);
  if (slices_.use_count() != 1) throw std::logic_error("the previous private gradient must be dropped first");
  if (last_ && !(step.step > last_->step || (step.step == last_->step && step.attempt > last_->attempt))) {
    throw std::logic_error("step " + std::to_string(step.step) + ", attempt " + std::to_string(step.attempt) +
                           " does not come after the last release: its noise would repeat");
  }
  const bool may_follow = !rows_ || row_ + 1 < rows_->steps();
  const bool follows = last_ && released_whole_ && step.step == last_->step + 1 && may_follow;
  const StepId before = follows ? *last_ : StepId{};
  last_ = step;
  released_whole_ = false;
  open_for_.reset();
  clear_keys();  // of a step that was given up; not before open_for_ is none, or its sum would go on with them
  row_ = follows ? row_ + 1 : 0;
  charge(step, sum.terms_);
  const StepTerms& terms = sum.terms_;
  noise_scale_ = terms.noise_multiplier ? rounded_up(terms.noise_multiplier->value() * terms.clip_norm.value()) : 0.0F;
  noise_scale_ = rounded_up(band_norm_ * chain_.norm(step.step) * static_cast<double>(noise_scale_));
  history_.begin_step(follows);
  buffers_.begin_step(follows);
  noise_key_ = key_->derive(Purpose::kNoise, step);
  if (follows && chain_.goes_on_at(step.step)) key_taken_back_ = key_->derive(Purpose::kNoise, before);
  started_.assign(model_.groups().size(), false);
  open_for_ = sum.serial_;
}

at::Tensor GaussianMechanism::noised_slice(const fsdp::FlatGroup& group) {
  return started_[static_cast<size_t>(group.index())] ? slices_->shard(group) : start_slice(group);
}

at::Tensor GaussianMechanism::start_slice(const fsdp::FlatGroup& group) {
  const at::Tensor slice = slices_->shard(group).zero_();
  // Once in the whole mesh: the owners on replica 0. (On the model axis every rank owns other elements, or the same
  // ones of a parameter that all of them hold, and then draws the same noise.)
  if (model_.mesh().replica() == 0 && noise_scale_ != 0) {
    if (key_taken_back_) {
      add_own_noise(group, slice, *key_taken_back_, chain_.taken_back(noise_scale_));
      slice.neg_();
    }
    add_own_noise(group, slice, noise_key_, noise_scale_);
    history_.correlate(group, slice);
    buffers_.correlate(group, slice);
  }
  started_[static_cast<size_t>(group.index())] = true;
  return slice;
}

void GaussianMechanism::add_own_noise(const fsdp::FlatGroup& group, const at::Tensor& slice,
                                      const kernels::ChaChaKey& key, float scale) const {
  std::vector<kernels::GaussianPart> parts;
  for (const fsdp::OwnedRange& range : group.owned()) {
    const fsdp::Parameter& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
    for (const fsdp::ElementRun& run : parameter.whole_runs(range.first, range.count)) {
      parts.push_back({.parameter = parameter.id(),
                       .first = static_cast<uint64_t>(run.whole_first),
                       .offset = range.shard_offset + (run.first - range.first),
                       .count = run.count});
    }
  }
  kernels::add_gaussian(key, parts, scale, slice);
}

void GaussianMechanism::begin_streaming(ClippedSum& sum) {
  if (sum.plan_ != plan_) throw std::logic_error("a mechanism takes only clipped sums of its own plan");
  open(sum, sum.step_);
  // A microbatch that failed halfway is no part of this one.
  if (!reduction_.idle()) reduction_.forget();
  for (const auto& group : model_.groups()) sum.sums_->close_streamed(*group);
}

void GaussianMechanism::stream(fsdp::GradientBuffers& sums, const fsdp::FlatGroup& group) {
  at::Tensor message = sums.open_streamed(group);
  sums.close_streamed(group);
  reduction_.push(group, std::move(message));
}

void GaussianMechanism::end_streaming() { reduction_.drain(); }

void GaussianMechanism::check_releasable(const ClippedSum& sum, const StepId& step) const {
  if (sum.sums_ == nullptr || sum.plan_ != plan_) {
    throw std::logic_error("a mechanism releases only unconsumed clipped sums of its own plan");
  }
  if (sum.unfinished_) {
    throw std::logic_error("a clipped sum is released whole: a microbatch is added in part");
  }
  if (sum.mechanism_ != nullptr &&
      (sum.mechanism_ != this || sum.step_.step != step.step || sum.step_.attempt != step.attempt)) {
    throw std::logic_error("a clipped sum is released by the mechanism and as the step that it was begun with");
  }
  if (!reduction_.idle()) {
    throw std::logic_error("a clipped sum is released whole: a microbatch failed while it was added");
  }
}

void GaussianMechanism::reduce_rest(const ClippedSum& sum) {
  const auto divide = [&](const fsdp::FlatGroup* finished) {
    if (finished != nullptr) slices_->shard(*finished).mul_(1 / divisor_);
  };
  std::vector<const fsdp::FlatGroup*> whole;
  for (const auto& group : model_.groups()) {
    if (!group->trainable()) continue;
    if (started_[static_cast<size_t>(group->index())]) {
      divide(group.get());
    } else if (sum.sums_->streamed(*group)) {
      // No microbatch came: nothing but noise, which the other replicas still have to hear of.
      stream(*sum.sums_, *group);
      divide(reduction_.drain());
    } else {
      whole.push_back(group.get());
    }
  }
  for (const fsdp::FlatGroup* group : whole) divide(reduction_.push(*group, sum.sums_->flat(*group)));
  divide(reduction_.drain());
}

void GaussianMechanism::agree_on_whole() {
  if (model_.mesh().shape().model == 1) return;
  std::vector<at::Tensor> whole;
  for (const auto& group : model_.groups()) {
    if (!group->trainable()) continue;
    const at::Tensor slice = slices_->shard(*group);
    for (const fsdp::OwnedRange& range : group->owned()) {
      const bool cut = group->parameters()[static_cast<size_t>(range.tensor)]->cut();
      if (!cut) whole.push_back(slice.narrow(0, range.shard_offset, range.count));
    }
  }
  if (whole.empty()) return;
  const at::Tensor message = at::cat(whole);
  if (message.numel() > 0) model_.mesh().model().broadcast(message, 0);
  int64_t from = 0;
  for (at::Tensor& mine : whole) {
    mine.copy_(message.narrow(0, from, mine.numel()));
    from += mine.numel();
  }
}

void GaussianMechanism::adapt_clip_norm(const ClippedSum& sum, const StepId& step) {
  noised_share_.reset();
  if (!adaptation_ || !sum.centred_count_.defined()) return;
  fsdp::Mesh& mesh = model_.mesh();
  at::Tensor count = sum.centred_count_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  if (mesh.rank() == 0) {
    kernels::ChaChaKey key = key_->derive(Purpose::kCountNoise, step);
    count += count_noise(key, *sum.terms_.count_noise);
    OPENSSL_cleanse(key.data(), key.size());
  }
  // Multiples of 1/2, which add up exactly whatever the order is.
  if (mesh.world_size() > 1) mesh.control().all_reduce_sum(count);
  noised_share_ = 0.5 + count.item<double>() / adaptation_->expected_batch;
  // Rank 0's: another machine's exponential may differ in the last digit.
  const at::Tensor next =
      at::full({1}, adaptation_->quantile.next(sum.terms_.clip_norm, *noised_share_).value(), at::kDouble);
  if (mesh.world_size() > 1) mesh.control().broadcast(next, 0);
  adaptation_->terms->clip_norm = accountant::ClipNorm(next.item<double>());
}

void GaussianMechanism::clear_keys() {
  // Not by fill(), which a compiler leaves out if nobody reads the bytes again.
  OPENSSL_cleanse(noise_key_.data(), noise_key_.size());
  if (key_taken_back_) OPENSSL_cleanse(key_taken_back_->data(), key_taken_back_->size());
  key_taken_back_.reset();
}

PrivateGradient GaussianMechanism::release(ClippedSum&& sum, const StepId& step) {
  const ClippedSum opened = std::move(sum);
  check_releasable(opened, step);
  open(opened, step);
  reduce_rest(opened);
  agree_on_whole();
  adapt_clip_norm(opened, step);
  released_whole_ = true;
  open_for_.reset();
  clear_keys();
  return PrivateGradient(slices_);
}

}  // namespace ghostshard::dp
