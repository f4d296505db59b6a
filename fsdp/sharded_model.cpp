#include "fsdp/sharded_model.h"

#include <stdexcept>
#include <unordered_set>

#include "fsdp/unit_buffers.h"

namespace ghostshard::fsdp {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

constexpr double kMostPaddingForRows = 0.03;

// Whole rows on a rank serve optimizers that look at rows; not worth more than a few per cent of padding.
ShardPlan plan_group(const std::vector<const Parameter*>& parameters, int64_t world_size) {
  std::vector<TensorSpec> rows;
  for (const Parameter* parameter : parameters) {
    const int64_t row = parameter->shape().size() >= 2 ? parameter->shape().back() : 1;
    rows.push_back({.name = parameter->name(), .shape = parameter->shape(), .block = row});
  }
  std::vector<TensorSpec> elements = rows;
  for (TensorSpec& spec : elements) spec.block = 1;
  ShardPlan by_rows = ShardPlan::make(std::move(rows), world_size);
  if (static_cast<double>(by_rows.padding()) < kMostPaddingForRows * static_cast<double>(by_rows.flat_size())) {
    return by_rows;
  }
  return ShardPlan::make(std::move(elements), world_size);
}

}  // namespace

int64_t Parameter::numel() const { return c10::multiply_integers(shape_); }
int64_t Parameter::whole_numel() const { return c10::multiply_integers(whole_shape_); }

std::vector<ElementRun> Parameter::whole_runs(int64_t first, int64_t count) const {
  const Mesh& mesh = model_->mesh();
  return fsdp::whole_runs(whole_shape_, split_, mesh.shape().model, mesh.model_rank(), first, count);
}

at::Tensor Parameter::value() const {
  const UnitBuffers& buffers = *model_->buffers_;
  if (!buffers.gathered(unit_)) {
    throw std::logic_error("parameter '" + name_ + "': its unit must be gathered (acquire it first)");
  }
  const at::NoGradGuard no_grad;
  return buffers.flat(*group_).narrow(0, offset_, numel()).view(shape_);
}

ShardedModel::ShardedModel(Mesh& mesh, std::vector<UnitSpec> units, at::ScalarType compute_dtype)
    : mesh_(mesh), specs_(std::move(units)), compute_dtype_(compute_dtype) {
  if (compute_dtype != at::kFloat && compute_dtype != at::kBFloat16) {
    throw std::invalid_argument(std::string("the compute dtype must be float32 or bfloat16, got ") +
                                c10::toString(compute_dtype));
  }
  const at::NoGradGuard no_grad;
  std::unordered_set<std::string> names;
  for (size_t u = 0; u < specs_.size(); ++u) {
    std::vector<Parameter*> members[2];  // trainable, frozen
    for (const ParameterSpec& spec : specs_[u].parameters) {
      auto parameter = std::make_unique<Parameter>();
      parameter->name_ = spec.name;
      parameter->id_ = static_cast<uint32_t>(parameters_.size());
      parameter->trainable_ = spec.trainable;
      parameter->unit_ = static_cast<int64_t>(u);
      parameter->model_ = this;
      if (!names.insert(spec.name).second) {
        throw std::invalid_argument("parameter names must be unique, got '" + spec.name + "' twice");
      }
      bool empty = spec.shape.empty();
      for (const int64_t extent : spec.shape) empty = empty || !(extent >= 1);
      if (empty) {
        throw std::invalid_argument("parameter '" + spec.name +
                                    "': the shape must have one or more extents, all at least 1, got " +
                                    text_of(spec.shape));
      }
      parameter->whole_shape_ = spec.shape;
      parameter->split_ = spec.split;
      parameter->shape_ = part_shape(spec.name, spec.shape, spec.split, mesh_.shape().model);
      members[spec.trainable ? 0 : 1].push_back(parameter.get());
      parameters_.push_back(std::move(parameter));
    }
    for (const bool trainable : {true, false}) {
      const auto& of_kind = members[trainable ? 0 : 1];
      if (of_kind.empty()) continue;
      auto group = std::make_unique<FlatGroup>();
      group->index_ = static_cast<int64_t>(groups_.size());
      group->unit_ = static_cast<int64_t>(u);
      group->trainable_ = trainable;
      group->parameters_.assign(of_kind.begin(), of_kind.end());
      group->plan_ = plan_group(group->parameters_, mesh_.shape().shard);
      group->shard_rank_ = mesh_.shard_rank();
      group->shard_ = at::zeros({group->plan_.shard_size()}, at::kFloat);
      for (size_t t = 0; t < of_kind.size(); ++t) {
        of_kind[t]->group_ = group.get();
        of_kind[t]->offset_ = group->plan_.offset(static_cast<int64_t>(t));
      }
      groups_.push_back(std::move(group));
    }
  }
  buffers_ = std::make_shared<UnitBuffers>(mesh_, specs_, groups_, compute_dtype_);
}

ShardedModel::~ShardedModel() = default;

int64_t ShardedModel::unit_count() const { return static_cast<int64_t>(specs_.size()); }

int64_t ShardedModel::parameter_count() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->whole_numel();
  return sum;
}

int64_t ShardedModel::trainable_parameter_count() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->trainable() ? parameter->whole_numel() : 0;
  return sum;
}

const Parameter& ShardedModel::parameter(const std::string& name) const {
  for (const auto& parameter : parameters_) {
    if (parameter->name() == name) return *parameter;
  }
  throw std::out_of_range("the model has no parameter '" + name + "'");
}

bool ShardedModel::unit_trainable(int64_t unit) const {
  for (const ParameterSpec& spec : specs_.at(static_cast<size_t>(unit)).parameters) {
    if (spec.trainable) return true;
  }
  return false;
}

void ShardedModel::prefetch(int64_t unit) { buffers_->prefetch(unit); }
void ShardedModel::acquire(int64_t unit) { buffers_->acquire(unit); }
void ShardedModel::release(int64_t unit) { buffers_->release(unit); }
bool ShardedModel::gathered(int64_t unit) const { return buffers_->gathered(unit); }
void ShardedModel::reset_leases() { buffers_->reset_leases(); }
void ShardedModel::wait_for_gathers() { buffers_->wait_for_gathers(); }
int64_t ShardedModel::gathers() const { return buffers_->gathers(); }
void ShardedModel::weights_changed() { buffers_->invalidate(); }

void ShardedModel::set_parameter(const Parameter& parameter, const at::Tensor& whole) {
  if (!whole.defined() || whole.sizes() != at::IntArrayRef(parameter.whole_shape())) {
    throw std::invalid_argument("parameter '" + parameter.name() + "': the shape must be " +
                                text_of(parameter.whole_shape()) + ", got " +
                                (whole.defined() ? text_of(whole.sizes().vec()) : "an undefined tensor"));
  }
  const at::NoGradGuard no_grad;
  wait_for_gathers();
  const FlatGroup& group = parameter.group();
  const at::Tensor flat =
      part_of(whole.detach(), parameter.split_, mesh_.shape().model, mesh_.model_rank()).reshape({-1});
  for (const OwnedRange& range : group.owned()) {
    if (group.parameters()[static_cast<size_t>(range.tensor)] != &parameter) continue;
    group.shard().narrow(0, range.shard_offset, range.count).copy_(flat.narrow(0, range.first, range.count));
  }
  weights_changed();
}

at::Tensor ShardedModel::whole_parameter(const Parameter& parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor part = whole_part(parameter);
  if (!parameter.cut()) return part;
  const int64_t ranks = mesh_.shape().model;
  const at::Tensor parts = at::empty({ranks * part.numel()}, at::kFloat);
  mesh_.model().all_gather(parts, part)->wait();
  return join_parts(parts, parameter.whole_shape(), parameter.split_, ranks);
}

at::Tensor ShardedModel::whole_part(const Parameter& parameter) {
  // The unit's own buffer where it is free: the unit's other parameters then cost no further gather.
  if (compute_dtype_ == at::kFloat && buffers_->available(parameter.unit())) {
    const Lease lease(*this, parameter.unit());
    return parameter.value().clone();
  }
  const FlatGroup& group = parameter.group();
  at::Tensor flat = at::empty({group.plan().flat_size()}, at::kFloat);
  mesh_.gather().all_gather(flat, group.shard())->wait();
  return flat.narrow(0, parameter.offset(), parameter.numel()).view(parameter.shape()).clone();
}

Lease::Lease(ShardedModel& model, int64_t unit)
    : buffers_(model.buffers_), unit_(unit), epoch_(model.buffers_->epoch()) {
  model.acquire(unit);
}

void Lease::release() noexcept {
  if (const auto buffers = buffers_.lock()) buffers->release_of_epoch(unit_, epoch_);
}

}  // namespace ghostshard::fsdp
