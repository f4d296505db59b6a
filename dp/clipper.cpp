#include "dp/clipper.h"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace ghostshard::dp {

at::Tensor clip_factors(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm) {
  const at::Tensor factors = at::empty({squared_norms.size(0)}, at::kFloat);
  const double* bounds = squared_norms.const_data_ptr<double>();
  float* out = factors.data_ptr<float>();
  constexpr double kShrink = 1.0 - 0x1p-22;
  for (int64_t u = 0; u < factors.size(0); ++u) {
    const double norm = std::sqrt(bounds[u]);
    if (!(norm <= std::numeric_limits<double>::max())) {
      out[u] = 0.0F;
      continue;
    }
    const double exact = kShrink * (norm > clip_norm.value() ? clip_norm.value() / norm : 1.0);
    auto rounded = static_cast<float>(exact);
    if (static_cast<double>(rounded) > exact) rounded = std::nextafter(rounded, 0.0F);
    out[u] = rounded;
  }
  return factors;
}

Clipper::Clipper(fsdp::ShardedModel& model, accountant::ClipNorm clip_norm, const ClipperOptions& options,
                 uint64_t plan)
    : mesh_(model.mesh()),
      clip_norm_(clip_norm),
      options_(options),
      plan_(plan),
      sums_(std::make_shared<fsdp::GradientBuffers>(model, options.reduce_each)),
      memory_(std::make_unique<HoldMemory>(options.hold_memory_bytes)) {}

ClippedSum Clipper::begin() {
  if (sums_->any_in_turn()) {
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
  return {sums_, plan_};
}

std::shared_ptr<Tape> Clipper::record(int64_t units) {
  if (const auto open = open_.lock(); open != nullptr && !open->closed_) {
    throw std::logic_error("one microbatch at a time: add() or drop the previous tape before recording the next");
  }
  auto tape = std::make_shared<Tape>(units, *memory_, options_.recording, options_.planned_recording);
  open_ = tape;
  return tape;
}

void Clipper::add(ClippedSum& sum, std::shared_ptr<Tape> tape) {
  if (sum.plan_ != plan_ || sum.sums_ == nullptr) {
    throw std::logic_error("a clipped sum takes contributions only from the clipper that began it");
  }
  if (tape == nullptr || tape != open_.lock() || tape->closed_) {
    throw std::logic_error("a tape is added once, to a sum of the clipper that recorded it");
  }
  const at::Tensor squared_norms = tape->squared_norms(/*shared_too=*/mesh_.model_rank() == 0);
  if (mesh_.shape().model > 1) mesh_.model().all_reduce_sum(squared_norms);
  const at::Tensor factors = clip_factors(squared_norms, clip_norm_);
  // What is reduced with every microbatch comes first, group by group; then what is summed up here.
  if (sums_->any_in_turn()) {
    sum.mechanism_->absorb(sum, [&](const fsdp::FlatGroup& group) { tape->add_group(factors, group, *sum.sums_); });
  }
  tape->add_rest(factors, *sum.sums_);
}

}  // namespace ghostshard::dp
