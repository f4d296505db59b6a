#include "dp/mechanism/gaussian.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

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
                                     accountant::LedgerWriter* ledger, double divisor, uint64_t plan)
    : model_(model),
      key_(&key),
      ledger_(ledger),
      divisor_(divisor),
      plan_(plan),
      reduction_(model),
      slices_(std::make_shared<fsdp::ShardBuffers>(model)) {
  key.claim_for_mechanism();
}

void GaussianMechanism::charge(const StepId& step, const StepTerms& terms) {
  // Rank 0 writes and every rank learns the outcome before any of them goes on.
  const at::Tensor written = at::ones({1}, at::kLong);
  std::string reason;
  if (ledger_ != nullptr) {
    try {
      if (!terms.event) throw std::invalid_argument("a step without noise cannot be charged");
      ledger_->append(step.step, step.attempt, *terms.event);
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
}

void GaussianMechanism::open(const ClippedSum& sum, const StepId& step) {
  if (open_for_ && sum.mechanism_ == this && *open_for_ == sum.serial_) return;
  if (slices_ == nullptr) slices_ = std::make_shared<fsdp::ShardBuffers>(model_);
  if (slices_.use_count() != 1) throw std::logic_error("the previous private gradient must be dropped first");
  if (last_ && !(step.step > last_->step || (step.step == last_->step && step.attempt > last_->attempt))) {
    throw std::logic_error("step " + std::to_string(step.step) + ", attempt " + std::to_string(step.attempt) +
                           " does not come after the last release: its noise would repeat");
  }
  last_ = step;
  open_for_.reset();
  charge(step, sum.terms_);
  const StepTerms& terms = sum.terms_;
  noise_scale_ = terms.noise_multiplier ? rounded_up(terms.noise_multiplier->value() * terms.clip_norm.value()) : 0.0F;
  noise_key_ = key_->derive(Purpose::kNoise, step);
  started_.assign(model_.groups().size(), false);
  open_for_ = sum.serial_;
}

at::Tensor GaussianMechanism::start_slice(const fsdp::FlatGroup& group) {
  started_[static_cast<size_t>(group.index())] = true;
  const at::Tensor slice = slices_->shard(group).zero_();
  // Once in the whole mesh: the owners on replica 0. (On the model axis every rank owns other elements, or the same
  // ones of a parameter that all of them hold, and then draws the same noise.)
  if (model_.mesh().replica() != 0 || noise_scale_ == 0) return slice;
  for (const fsdp::OwnedRange& range : group.owned()) {
    const fsdp::Parameter& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
    for (const fsdp::ElementRun& run : parameter.whole_runs(range.first, range.count)) {
      kernels::add_gaussian(noise_key_, parameter.id(), static_cast<uint64_t>(run.whole_first), noise_scale_, slice,
                            range.shard_offset + (run.first - range.first), run.count);
    }
  }
  return slice;
}

void GaussianMechanism::begin_streaming(ClippedSum& sum) {
  if (sum.plan_ != plan_) throw std::logic_error("a mechanism takes only clipped sums of its own plan");
  open(sum, sum.step_);
  // What a microbatch left that failed halfway is no part of this one.
  if (std::exchange(travelling_, nullptr) != nullptr) reduction_.forget();
  for (const auto& group : model_.groups()) sum.sums_->close_streamed(*group);
}

void GaussianMechanism::stream(fsdp::GradientBuffers& sums, const fsdp::FlatGroup& group) {
  at::Tensor message = sums.open_streamed(group);
  sums.close_streamed(group);
  reduction_.begin(group, std::move(message));
  end_streaming();
  travelling_ = &group;
}

void GaussianMechanism::end_streaming() {
  if (travelling_ == nullptr) return;
  const fsdp::FlatGroup& arriving = *std::exchange(travelling_, nullptr);
  const bool started = started_[static_cast<size_t>(arriving.index())];
  reduction_.finish(arriving, started ? slices_->shard(arriving) : start_slice(arriving));
}

PrivateGradient GaussianMechanism::release(ClippedSum&& sum, const StepId& step) {
  const ClippedSum opened = std::move(sum);
  if (opened.sums_ == nullptr || opened.plan_ != plan_) {
    throw std::logic_error("a mechanism releases only unconsumed clipped sums of its own plan");
  }
  if (opened.unfinished_) {
    throw std::logic_error("a clipped sum is released whole: a microbatch is added in part");
  }
  if (opened.mechanism_ != nullptr &&
      (opened.mechanism_ != this || opened.step_.step != step.step || opened.step_.attempt != step.attempt)) {
    throw std::logic_error("a clipped sum is released by the mechanism and as the step that it was begun with");
  }
  if (travelling_ != nullptr) {
    throw std::logic_error("a clipped sum is released whole: a microbatch failed while it was added");
  }
  open(opened, step);
  std::vector<const fsdp::FlatGroup*> groups;
  for (const auto& group : model_.groups()) {
    if (!group->trainable()) continue;
    if (started_[static_cast<size_t>(group->index())]) {
      slices_->shard(*group).div_(divisor_);
      continue;
    }
    if (opened.sums_->streamed(*group)) {
      // No microbatch came: nothing but noise, which the other replicas still have to hear of.
      reduction_.begin(*group, opened.sums_->open_streamed(*group));
      opened.sums_->close_streamed(*group);
      const at::Tensor slice = start_slice(*group);
      reduction_.finish(*group, slice);
      slice.div_(divisor_);
      continue;
    }
    groups.push_back(group.get());
  }
  // While one group's slices travel, the next one's are already on their way and this one's noise is drawn.
  if (!groups.empty()) reduction_.begin(*groups[0], opened.sums_->flat(*groups[0]));
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i + 1 < groups.size()) reduction_.begin(*groups[i + 1], opened.sums_->flat(*groups[i + 1]));
    const at::Tensor slice = start_slice(*groups[i]);
    reduction_.finish(*groups[i], slice);
    slice.div_(divisor_);
  }
  open_for_.reset();
  noise_key_.fill(0);
  return PrivateGradient(slices_);
}

}  // namespace ghostshard::dp
