#include "dp/mechanism/clipper.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dp/mechanism/clip_quantile.h"
#include "kernels/clip_factors.h"

namespace ghostshard::dp {
namespace {

constexpr double kStability = 0.01;  // γ of AUTO-S
// For the rounding of the product, as in kernels/clip_factors.h, and of the factor to float32.
constexpr double kShrunk = 1 - 0x1p-22 - 0x1p-24;

// Divisions and roots of IEEE 754: the same bits on every device. Below the least normal number a factor would be
// rounded by more than kShrunk allows for: such a unit contributes nothing.
at::Tensor automatic_factors(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm) {
  const at::Tensor factors = (squared_norms.sqrt() + kStability).reciprocal().mul(clip_norm.value() * kShrunk);
  const at::Tensor none = squared_norms.isfinite().logical_and(factors.ge(0x1p-126)).logical_not();
  return factors.masked_fill(none, 0).to(at::kFloat);
}

}  // namespace

std::string to_string(Clipping clipping) {
  if (clipping == Clipping::kFlat) return "flat, per unit, over all trainable parameters";
  if (clipping == Clipping::kAutomatic) {
    return "automatic, per unit, over all trainable parameters: each is scaled by clip_norm/(its norm + 0.01)";
  }
  return "per layer, per unit: each of the K groups of trainable parameters that are gathered together is bounded by "
         "clip_norm/sqrt(K)";
}

Clipper::Clipper(fsdp::GroupedParameters& model, std::shared_ptr<const StepTerms> terms, Clipping clipping,
                 const ClipperOptions& options, uint64_t plan)
    : model_(model),
      terms_(std::move(terms)),
      clipping_(clipping),
      options_(options),
      plan_(plan),
      sums_(std::make_shared<fsdp::GradientBuffers>(model, options.streamed)),
      memory_(std::make_shared<HoldMemory>(options.hold_memory_bytes, model.device())) {
  for (const auto& group : model.groups()) layers_ += group->trainable() ? 1 : 0;
  plan_recording(options.planned_recording);
}

// A second pass adds to this clipper's sums, which a graph does not keep.
Clipper::~Clipper() {
  if (const auto open = open_.lock()) open->give_up();
}

void Clipper::plan_recording(RecordingPlan planned) {
  two_pass_ = options_.recording == RecordingChoice::kTwoPass ||
              std::find(planned.begin(), planned.end(), kernels::Recording::kTwoPass) != planned.end();
  planned_ = std::make_shared<const RecordingPlan>(std::move(planned));
}

ClippedSum Clipper::begin() {
  if (sums_->any_streamed()) {
    throw std::logic_error("a plan that reduces with every microbatch begins its sums with the mechanism and the step");
  }
  return begin_sum();
}

ClippedSum Clipper::begin(GaussianMechanism& mechanism, const StepId& step) {
  ClippedSum sum = begin_sum();
  sum.mechanism_ = &mechanism;
  sum.step_ = step;
  sum.serial_ = ++sums_begun_;
  return sum;
}

ClippedSum Clipper::begin_sum() {
  if (sums_.use_count() != 1)
    throw std::logic_error("the previous clipped sum must be released before the next begins");
  sums_->zero();
  ClippedSum sum(sums_, *terms_, plan_);
  if (terms_->count_noise) sum.centred_count_ = at::zeros({1}, at::dtype(at::kDouble).device(model_.device()));
  return sum;
}

std::shared_ptr<Tape> Clipper::record(int64_t units) { return record(units, planned_); }

std::shared_ptr<Tape> Clipper::record(int64_t units, std::shared_ptr<const RecordingPlan> planned,
                                      std::shared_ptr<const fsdp::GroupedParameters> model) {
  if (const auto open = open_.lock(); open != nullptr && !open->closed_) {
    throw std::logic_error("one microbatch at a time: add() or drop the previous tape before recording the next");
  }
  auto tape = std::make_shared<Tape>(units, static_cast<int64_t>(model_.parameters().size()), memory_,
                                     options_.recording, std::move(planned), std::move(model));
  open_ = tape;
  return tape;
}

void Clipper::check(const ClippedSum& sum, const std::shared_ptr<Tape>& tape) const {
  if (sum.plan_ != plan_ || sum.sums_ == nullptr) {
    throw std::logic_error("a clipped sum takes contributions only from the clipper that began it");
  }
  if (tape == nullptr || tape != open_.lock() || tape->closed_) {
    throw std::logic_error("a tape is added once, to a sum of the clipper that recorded it");
  }
  if (sum.unfinished_ && !tape->in_second_pass()) {
    throw std::logic_error("a contribution to this clipped sum has failed half-way: it cannot be used any more");
  }
}

std::vector<const fsdp::FlatGroup*> Clipper::streamed_groups() const {
  std::vector<const fsdp::FlatGroup*> groups;
  for (const auto& group : model_.groups()) {
    if (group->trainable() && sums_->streamed(*group)) groups.push_back(group.get());
  }
  return groups;
}

at::Tensor Clipper::flat_factors(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm) const {
  return clipping_ == Clipping::kAutomatic ? automatic_factors(squared_norms, clip_norm)
                                           : kernels::clip_factors(squared_norms, clip_norm.value());
}

GroupFactors Clipper::factors(ClippedSum& sum, const Tape& tape) const {
  const accountant::ClipNorm clip_norm = sum.terms_.clip_norm;
  const bool shared_too = model_.mesh().model_rank() == 0;
  const auto agree = [&](const at::Tensor& squared_norms) {
    if (model_.mesh().shape().model > 1) model_.mesh().model().all_reduce_sum(squared_norms);
    return squared_norms;
  };
  const auto groups = static_cast<int64_t>(model_.groups().size());
  if (clipping_ != Clipping::kPerLayer) {
    const at::Tensor squared_norms = agree(tape.squared_norms(shared_too));
    GroupFactors factors(static_cast<size_t>(groups), flat_factors(squared_norms, clip_norm));
    // The ranks of the model axis have the same units.
    if (sum.centred_count_.defined() && model_.mesh().model_rank() == 0 && !tape.of_nobody()) {
      sum.centred_count_ += centred_count(squared_norms, clip_norm);
    }
    return factors;
  }
  const at::Tensor squared_norms = agree(tape.squared_norms_by_group(groups, shared_too));
  const accountant::ClipNorm share(clip_norm.value() / std::sqrt(static_cast<double>(layers_)));
  GroupFactors factors;
  for (int64_t group = 0; group < groups; ++group) {
    factors.push_back(kernels::clip_factors(squared_norms[group], share.value()));
  }
  return factors;
}

bool Clipper::second_pass(ClippedSum& sum, const std::shared_ptr<Tape>& tape) {
  check(sum, tape);
  if (!two_pass_) return false;
  if (tape->in_second_pass()) throw std::logic_error("a microbatch has two passes, not three");
  sum.unfinished_ = true;
  GroupFactors by_group = factors(sum, *tape);
  if (!sums_->any_streamed()) {
    tape->begin_second_pass(std::move(by_group), *sum.sums_);
    return true;
  }
  GaussianMechanism* const mechanism = sum.mechanism_;
  mechanism->begin_streaming(sum);
  auto last_first = streamed_groups();  // as backward reaches them
  std::reverse(last_first.begin(), last_first.end());
  tape->begin_second_pass(
      std::move(by_group), *sum.sums_, {last_first.begin(), last_first.end()},
      [mechanism, sums = sum.sums_.get()](const fsdp::FlatGroup& group) { mechanism->stream(*sums, group); });
  return true;
}

at::Tensor Clipper::recorded_bytes(const Tape& tape, int64_t parameters) const {
  const at::Tensor bytes = at::zeros({parameters}, at::kLong);
  tape.count_bytes({bytes.data_ptr<int64_t>(), static_cast<size_t>(parameters)});
  return bytes;
}

void Clipper::add(ClippedSum& sum, const std::shared_ptr<Tape>& tape) {
  check(sum, tape);
  if (tape->in_second_pass()) {
    tape->add_rest({}, *sum.sums_);
    if (sums_->any_streamed()) sum.mechanism_->end_streaming();
    sum.unfinished_ = false;
    return;
  }
  if (two_pass_) throw std::logic_error("matrices of this plan are recorded in two passes: second_pass() comes first");
  const GroupFactors by_group = factors(sum, *tape);
  sum.unfinished_ = true;  // a sum that fails half-way must not be added to again, nor released
  // Streamed groups come first, one by one; then those that are summed up here.
  if (sums_->any_streamed()) {
    sum.mechanism_->begin_streaming(sum);
    for (const fsdp::FlatGroup* group : streamed_groups()) {
      sum.sums_->open_streamed(*group);
      tape->add_group(by_group, *group, *sum.sums_);
      sum.mechanism_->stream(*sum.sums_, *group);
    }
    sum.mechanism_->end_streaming();
  }
  tape->add_rest(by_group, *sum.sums_);
  sum.unfinished_ = false;
}

}  // namespace ghostshard::dp
