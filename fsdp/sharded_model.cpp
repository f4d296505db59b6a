#include "fsdp/sharded_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "fsdp/sharded_model/buffers.h"

namespace ghostshard::fsdp {
namespace {

constexpr double kMostPaddingForRows = 0.03;

// Granules that were asked for, whatever they cost. For other parameters whole rows: they serve whoever looks at rows,
// but are not worth more than a few per cent of padding. Of a parameter that travels in codes whole stretches besides.
ShardPlan plan_group(const std::vector<const Parameter*>& parameters, int64_t world_size, const GatherCode* code) {
  std::vector<TensorSpec> rows, elements;
  for (const Parameter* parameter : parameters) {
    const int64_t row = parameter->shape().size() >= 2 ? parameter->shape().back() : 1;
    const int64_t stretch = code != nullptr && code->takes(parameter->shape()) ? code->stretch() : 1;
    const auto spec = [&](int64_t granule) {
      return TensorSpec{.name = parameter->name(), .shape = parameter->shape(), .granule = std::lcm(granule, stretch)};
    };
    rows.push_back(spec(parameter->granule().value_or(row)));
    elements.push_back(spec(parameter->granule().value_or(1)));
  }
  ShardPlan by_rows = ShardPlan::make(std::move(rows), world_size);
  if (static_cast<double>(by_rows.padding()) < kMostPaddingForRows * static_cast<double>(by_rows.flat_size())) {
    return by_rows;
  }
  return ShardPlan::make(std::move(elements), world_size);
}

std::function<ShardPlan(const std::vector<const Parameter*>&, int64_t)> planner(const GatherCode* code) {
  return [code](const auto& parameters, int64_t world_size) { return plan_group(parameters, world_size, code); };
}

}  // namespace

ShardedModel::ShardedModel(Mesh& mesh, std::vector<BlockSpec> blocks, at::ScalarType compute_dtype,
                           std::shared_ptr<const GatherCode> code, std::shared_ptr<const WeightRounding> rounding)
    : GroupedParameters(mesh, std::move(blocks), planner(code.get())),
      compute_dtype_(compute_dtype),
      code_(std::move(code)),
      rounding_(std::move(rounding)) {
  if (compute_dtype != at::kFloat && compute_dtype != at::kBFloat16) {
    throw std::invalid_argument(std::string("the compute dtype must be float32 or bfloat16, got ") +
                                c10::toString(compute_dtype));
  }
  if (code_ && mesh.shape().model > 1) {
    throw std::invalid_argument("weights travel in codes (" + code_->name() +
                                ") on a mesh without a model axis only, got " + mesh.shape().text());
  }
  if (rounding_ && compute_dtype != at::kBFloat16) {
    throw std::invalid_argument(std::string("master weights in bfloat16 need the compute dtype bfloat16, got ") +
                                c10::toString(compute_dtype));
  }
  const at::NoGradGuard no_grad;
  allocate_shards(master_dtype());
  buffers_ = std::make_shared<BlockBuffers>(mesh, this->blocks(), groups(), compute_dtype_, code_);
}

ShardedModel::~ShardedModel() = default;

ModelLayout::ModelLayout(Mesh& mesh, std::vector<BlockSpec> blocks, const GatherCode* code)
    : GroupedParameters(mesh, std::move(blocks), planner(code)) {}

int64_t ModelLayout::padding() const {
  int64_t padding = 0;
  for (const auto& group : groups()) padding += group->plan().padding();
  return padding;
}

at::Tensor ModelLayout::value_of(const Parameter& parameter) const {
  throw std::logic_error("parameter '" + parameter.name() + "': a layout has no values");
}

at::Tensor ShardedModel::value_of(const Parameter& parameter) const {
  if (!buffers_->gathered(parameter.block())) {
    throw std::logic_error("parameter '" + parameter.name() + "': its block must be gathered (acquire it first)");
  }
  const at::NoGradGuard no_grad;
  return buffers_->flat(parameter.group()).narrow(0, parameter.offset(), parameter.numel()).view(parameter.shape());
}

void ShardedModel::prefetch(int64_t block) { buffers_->prefetch(block); }
void ShardedModel::acquire(int64_t block) { buffers_->acquire(block); }
void ShardedModel::release(int64_t block) { buffers_->release(block); }
bool ShardedModel::gathered(int64_t block) const { return buffers_->gathered(block); }
void ShardedModel::reset_leases() { buffers_->reset_leases(); }
void ShardedModel::wait_for_gathers() { buffers_->wait_for_gathers(); }
int64_t ShardedModel::gathers() const { return buffers_->gathers(); }
void ShardedModel::weights_changed() { buffers_->invalidate(); }

void ShardedModel::set_parameter(const Parameter& parameter, const at::Tensor& whole) {
  if (!whole.defined() || whole.sizes() != at::IntArrayRef(parameter.whole_shape())) {
    throw std::invalid_argument("parameter '" + parameter.name() + "': the shape must be " +
                                c10::str(at::IntArrayRef(parameter.whole_shape())) + ", got " +
                                (whole.defined() ? c10::str(whole.sizes()) : "an undefined tensor"));
  }
  const at::NoGradGuard no_grad;
  wait_for_gathers();
  const FlatGroup& group = parameter.group();
  const at::Tensor flat =
      part_of(whole.detach(), parameter.split(), mesh().shape().model, mesh().model_rank()).reshape({-1});
  for (const OwnedRange& range : group.owned()) {
    if (group.parameters()[static_cast<size_t>(range.tensor)] != &parameter) continue;
    group.shard().narrow(0, range.shard_offset, range.count).copy_(flat.narrow(0, range.first, range.count));
  }
  weights_changed();
}

void ShardedModel::update_weights(const FlatGroup& group, const OwnedRange& range, int64_t step,
                                  const ChangeWeights& change) {
  const at::Tensor weights = group.shard().narrow(0, range.shard_offset, range.count);
  if (!rounding_) return change(weights, 0);
  const Parameter& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
  for (int64_t first = 0; first < range.count; first += kPiece) {
    const int64_t count = std::min(kPiece, range.count - first);
    const at::Tensor values = weights.narrow(0, first, count).to(at::kFloat);
    change(values, first);
    for (const ElementRun& run : parameter.whole_runs(range.first + first, count)) {
      const int64_t at = run.first - range.first;
      rounding_->round(values.narrow(0, at - first, run.count), parameter.id(), step, run.whole_first,
                       weights.narrow(0, at, run.count));
    }
  }
}

at::Tensor ShardedModel::whole_parameter(const Parameter& parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor part = whole_part(parameter);
  if (!parameter.cut()) return part.cpu();
  const int64_t ranks = mesh().shape().model;
  const at::Tensor parts = at::empty({ranks * part.numel()}, part.options());
  mesh().model().all_gather(parts, part)->wait();
  return join_parts(parts.cpu(), parameter.whole_shape(), parameter.split(), ranks);
}

at::Tensor ShardedModel::whole_part(const Parameter& parameter) {
  const auto copied = [](const at::Tensor& values) {
    return values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  };
  // Through the block's own buffer if it is free: the block's other parameters then cost no further gather.
  if (compute_dtype_ == master_dtype() && !code_ && buffers_->available(parameter.block())) {
    const Lease lease(*this, parameter.block());
    return copied(parameter.value());
  }
  const FlatGroup& group = parameter.group();
  const at::Tensor flat = at::empty({group.plan().flat_size()}, group.shard().options());
  mesh().gather().all_gather(flat.view(at::kFloat), group.shard().view(at::kFloat))->wait();
  return copied(flat.narrow(0, parameter.offset(), parameter.numel()).view(parameter.shape()));
}

Lease::Lease(ShardedModel& model, int64_t block)
    : buffers_(model.buffers_), block_(block), epoch_(model.buffers_->epoch()) {
  model.acquire(block);
}

void Lease::release() noexcept {
  if (const auto buffers = buffers_.lock()) buffers->release_of_epoch(block_, epoch_);
}

}  // namespace ghostshard::fsdp
