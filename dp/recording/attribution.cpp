#include "dp/recording/attribution.h"

#include <ATen/core/grad_mode.h>

namespace ghostshard::dp {
namespace {

// The one that trains, of two parameters that share their gradient rows; each may be missing.
const fsdp::Parameter& trained(const fsdp::Parameter* one, const fsdp::Parameter* other) {
  return one != nullptr && (one->trainable() || other == nullptr) ? *one : *other;
}

}  // namespace

Attribution::Attribution(std::vector<bool> chosen) : chosen_(std::move(chosen)) {}

void Attribution::linear(const LinearUse& use, const at::Tensor& /*a*/, const at::Tensor& g,
                         const SegmentsPtr& segments) {
  look(trained(use.weight, use.bias), g, *segments);
}

void Attribution::embedding(const fsdp::Parameter& table, const at::Tensor& /*ids*/, const at::Tensor& g,
                            const SegmentsPtr& segments) {
  look(table, g, *segments);
}

void Attribution::layer_norm(const LayerNormUse& use, const at::Tensor& /*x_hat*/, const at::Tensor& g,
                             const SegmentsPtr& segments) {
  look(trained(use.scale, use.shift), g, *segments);
}

void Attribution::instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) {
  look(parameter, gradients, kernels::Segments::even(units()));
}

void Attribution::head_tile(const LinearUse& use, const at::Tensor& a,
                            const std::shared_ptr<const HeadTiles>& /*tiles*/, int64_t /*tile*/, const at::Tensor& g,
                            const SegmentsPtr& segments) {
  linear(use, a, g, segments);
}

void Attribution::look(const fsdp::Parameter& parameter, const at::Tensor& g, const kernels::Segments& segments) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(segments.units() == units() && g.size(0) == segments.rows(), parameter.name(), ": ", g.size(0),
                    " rows of gradients for segments of ", segments.units(), " units and ", segments.rows(),
                    " rows, in a microbatch of ", units(), " units");
  auto& masses = masses_[parameter.id()];
  masses.resize(chosen_.size());
  for (int64_t u = 0; u < units() && reached_ == nullptr; ++u) {
    const at::Tensor own = g.narrow(0, segments.begin(u), segments.length(u));
    if (chosen_[static_cast<size_t>(u)]) {
      masses[static_cast<size_t>(u)] += own.square().sum(at::kDouble).item<double>();
      continue;
    }
    if (own.count_nonzero().item<int64_t>() == 0) continue;  // a value that is not a number counts as nonzero
    const at::Tensor numbers = own.ne(own).logical_not_();
    if (own.ne(0).logical_and_(numbers).any().item<bool>()) reached_ = &parameter;
    if (!numbers.all().item<bool>()) undecided_ = true;
  }
}

}  // namespace ghostshard::dp
