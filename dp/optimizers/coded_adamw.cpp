#include "dp/optimizers/coded_adamw.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/quantised_moments.h"

namespace ghostshard::dp {
namespace {

using fsdp::FlatGroup;
using fsdp::OwnedRange;
using fsdp::Parameter;
using kernels::CodeSign;

constexpr const char* kFirst = "first_moment";
constexpr const char* kSecond = "second_moment";
constexpr const char* kExcess = "second_moment_excess";  // over what the error variance explains

const Parameter& parameter_of(const FlatGroup& group, const OwnedRange& range) {
  return *group.parameters()[static_cast<size_t>(range.tensor)];
}

// One owned range and its moments: codes, or numbers.
struct Slice {
  const FlatGroup* group;
  OwnedRange range;
  bool decayed;
  bool coded;
  kernels::MomentCodes codes;
  at::Tensor first, second;  // float32 or bfloat16
};

const char* name_of(MomentBits bits) {
  return bits == MomentBits::kEight ? "adamw8bit" : bits == MomentBits::kSixteen ? "adamw16bit" : "adamw";
}

// On every rank alike, from the plan alone, so that all of them refuse.
void check_boundaries(const fsdp::ShardedModel& model, const fsdp::Chosen& coded) {
  for (const auto& group : model.groups()) {
    if (!group->trainable()) continue;
    for (int64_t rank = 0; rank < group->plan().world_size(); ++rank) {
      for (const OwnedRange& range : group->plan().owned(rank)) {
        const Parameter& parameter = parameter_of(*group, range);
        if (!coded(parameter) || range.first % kernels::kStretch == 0) continue;
        throw std::invalid_argument("parameter '" + parameter.name() +
                                    "': 8-bit moments need shards that are cut between " +
                                    std::to_string(kernels::kStretch) + " elements (its granule), rank " +
                                    std::to_string(rank) + "'s begins at element " + std::to_string(range.first));
      }
    }
  }
}

class CodedAdamW final : public fsdp::Optimizer {
 public:
  CodedAdamW(fsdp::ShardedModel& model, const CodedAdamWOptions& options, const fsdp::Chosen& chosen)
      : model_(model), options_(options), chosen_(chosen) {
    (void)kernels::adamw_terms(terms_of(1, 1.0));  // checks the options
    check_boundaries(model, [this](const Parameter& parameter) { return coded(parameter); });
    allocate();
  }

  std::string rule() const override {
    return name_of(options_.bits) + std::string(options_.subtract_above ? "_corrected" : "");
  }
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override {
    TORCH_CHECK_VALUE(steps >= 0, "the number of steps taken must not be negative, got ", steps);
    steps_ = steps;
  }
  std::vector<std::string> kinds() const override { return {kFirst, error_variance_ > 0 ? kExcess : kSecond}; }
  bool keeps(const std::string& kind, const Parameter& parameter) const override {
    const auto known = kinds();
    return mine(parameter) && std::find(known.begin(), known.end(), kind) != known.end();
  }
  at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) override;
  void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
             const at::Tensor& values) override;
  int64_t state_bytes() const override {
    return static_cast<int64_t>(codes_.nbytes() + scales_.nbytes() + numbers_.nbytes());
  }
  void step(const fsdp::ShardBuffers& gradient, double learning_rate) override;
  void set_error_variance(double variance) override {
    Optimizer::set_error_variance(variance);
    if (steps_ > 0) throw std::logic_error("the gradients' error variance is set before the first step");
    error_variance_ = variance;
  }

 private:
  bool mine(const Parameter& parameter) const { return parameter.trainable() && (!chosen_ || chosen_(parameter)); }
  bool coded(const Parameter& parameter) const {
    return mine(parameter) && options_.bits == MomentBits::kEight && parameter.numel() >= options_.least_coded;
  }
  CodeSign sign_of(const std::string& kind) const { return kind == kSecond ? CodeSign::kUnsigned : CodeSign::kSigned; }
  kernels::AdamWStep terms_of(int64_t step, double learning_rate) const {
    const fsdp::AdamWOptions& rule = options_.rule;
    kernels::AdamWStep terms{.learning_rate = learning_rate,
                             .beta1 = rule.beta1,
                             .beta2 = rule.beta2,
                             .epsilon = rule.epsilon,
                             .weight_decay = rule.weight_decay,
                             .step = step,
                             .error_variance = error_variance_};
    if (options_.subtract_above) {
      terms.subtract = true;
      terms.floor = *options_.subtract_above;
    }
    return terms;
  }
  void allocate();
  void update(const Slice& slice, const kernels::AdamWTerms& terms, const at::Tensor& weights,
              const at::Tensor& gradient, int64_t first) const;
  Slice& slice(const FlatGroup& group, const OwnedRange& range);

  fsdp::ShardedModel& model_;
  CodedAdamWOptions options_;
  fsdp::Chosen chosen_;
  double error_variance_ = 0;
  int64_t steps_ = 0;
  std::vector<Slice> slices_;
  at::Tensor codes_, scales_, numbers_;  // all slices', first moments then second
};

void CodedAdamW::allocate() {
  int64_t coded_elements = 0, stretches = 0, other_elements = 0;
  for (const auto& group : model_.groups()) {
    if (!group->trainable()) continue;
    for (const OwnedRange& range : group->owned()) {
      const Parameter& parameter = parameter_of(*group, range);
      if (!mine(parameter)) continue;
      slices_.push_back({.group = group.get(),
                         .range = range,
                         .decayed = parameter.shape().size() >= 2,
                         .coded = coded(parameter),
                         .codes = {},
                         .first = {},
                         .second = {}});
      if (slices_.back().coded) {
        coded_elements += range.count;
        stretches += kernels::stretches(range.count);
      } else {
        other_elements += range.count;
      }
    }
  }
  const auto on = at::device(model_.device());
  codes_ = at::zeros({2, coded_elements}, on.dtype(at::kByte));
  scales_ = at::zeros({2, stretches}, on.dtype(at::kFloat));
  numbers_ =
      at::zeros({2, other_elements}, on.dtype(options_.bits == MomentBits::kSixteen ? at::kBFloat16 : at::kFloat));
  int64_t code = 0, stretch = 0, element = 0;
  for (Slice& slice : slices_) {
    const int64_t count = slice.range.count;
    if (!slice.coded) {
      slice.first = numbers_[0].narrow(0, element, count);
      slice.second = numbers_[1].narrow(0, element, count);
      element += count;
      continue;
    }
    const int64_t scales = kernels::stretches(count);
    slice.codes = {.first = codes_[0].narrow(0, code, count),
                   .second = codes_[1].narrow(0, code, count),
                   .first_scale = scales_[0].narrow(0, stretch, scales),
                   .second_scale = scales_[1].narrow(0, stretch, scales)};
    code += count;
    stretch += scales;
  }
}

void CodedAdamW::step(const fsdp::ShardBuffers& gradient, double learning_rate) {
  const at::NoGradGuard no_grad;
  kernels::AdamWStep step = terms_of(steps_ + 1, learning_rate);
  const kernels::AdamWTerms decayed = kernels::adamw_terms(step);
  step.weight_decay = 0;
  const kernels::AdamWTerms other = kernels::adamw_terms(step);
  model_.wait_for_gathers();
  ++steps_;
  for (const Slice& slice : slices_) {
    const at::Tensor g = gradient.shard(*slice.group).narrow(0, slice.range.shard_offset, slice.range.count);
    const kernels::AdamWTerms& terms = slice.decayed ? decayed : other;
    model_.update_weights(*slice.group, slice.range, steps_, [&](const at::Tensor& weights, int64_t first) {
      update(slice, terms, weights, g.narrow(0, first, weights.numel()), first);
    });
  }
  model_.weights_changed();
}

// weights, gradient: of the slice's elements from `first` on, which begins a stretch.
void CodedAdamW::update(const Slice& slice, const kernels::AdamWTerms& terms, const at::Tensor& weights,
                        const at::Tensor& gradient, int64_t first) const {
  const int64_t count = weights.numel();
  const auto moments = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
  if (slice.coded) {
    const auto scales = [&](const at::Tensor& all) {
      return all.narrow(0, first / kernels::kStretch, kernels::stretches(count));
    };
    return kernels::adamw_step(terms, weights, gradient,
                               {.first = moments(slice.codes.first),
                                .second = moments(slice.codes.second),
                                .first_scale = scales(slice.codes.first_scale),
                                .second_scale = scales(slice.codes.second_scale)});
  }
  if (options_.bits != MomentBits::kSixteen) {
    return kernels::adamw_step(terms, weights, gradient, moments(slice.first), moments(slice.second));
  }
  const Parameter& parameter = parameter_of(*slice.group, slice.range);
  // Pieces of a parameter that the model axis cuts round by their own positions, alike on every shard axis.
  kernels::adamw_step(terms, weights, gradient,
                      {.first = moments(slice.first),
                       .second = moments(slice.second),
                       .stream = kernels::rounding_stream(parameter.id(), steps_),
                       .first_element = static_cast<uint64_t>(slice.range.first + first)});
}

Slice& CodedAdamW::slice(const FlatGroup& group, const OwnedRange& range) {
  const auto found = std::find_if(slices_.begin(), slices_.end(), [&](const Slice& slice) {
    return slice.group == &group && slice.range.shard_offset == range.shard_offset;
  });
  TORCH_CHECK(found != slices_.end(), "the optimizer keeps nothing of this range");
  return *found;
}

at::Tensor CodedAdamW::read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) {
  const Slice& from = slice(group, range);
  const bool first = kind == kFirst;
  if (!from.coded) return (first ? from.first : from.second).to(at::kFloat);
  const at::Tensor values = at::empty({range.count}, at::dtype(at::kFloat));
  kernels::decode_moments((first ? from.codes.first : from.codes.second).cpu(),
                          (first ? from.codes.first_scale : from.codes.second_scale).cpu(), sign_of(kind), values);
  return values;
}

void CodedAdamW::write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
                       const at::Tensor& values) {
  const Slice& to = slice(group, range);
  const bool first = kind == kFirst;
  if (!to.coded) {
    (first ? to.first : to.second).copy_(values);
    return;
  }
  const at::Tensor codes = at::empty({range.count}, at::dtype(at::kByte));
  const at::Tensor scales = at::empty({kernels::stretches(range.count)}, at::dtype(at::kFloat));
  kernels::encode_moments(values.cpu().contiguous(), sign_of(kind), codes, scales);
  (first ? to.codes.first : to.codes.second).copy_(codes);
  (first ? to.codes.first_scale : to.codes.second_scale).copy_(scales);
}

}  // namespace

fsdp::Granule eight_bit_granule() { return fsdp::Granule::elements(kernels::kStretch); }

std::unique_ptr<fsdp::Optimizer> make_coded_adamw(fsdp::ShardedModel& model, const CodedAdamWOptions& options,
                                                  const fsdp::Chosen& chosen) {
  return std::make_unique<CodedAdamW>(model, options, chosen);
}

}  // namespace ghostshard::dp
