#include "fsdp/parameters.h"

#include <stdexcept>
#include <unordered_set>

namespace ghostshard::fsdp {
namespace {

void check(const std::vector<BlockSpec>& blocks) {
  std::unordered_set<std::string> names;
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& spec : block.parameters) {
      if (!names.insert(spec.name).second) {
        throw std::invalid_argument("parameter names must be unique, got '" + spec.name + "' twice");
      }
      bool empty = spec.shape.empty();
      for (const int64_t extent : spec.shape) empty = empty || !(extent >= 1);
      if (empty) {
        throw std::invalid_argument("parameter '" + spec.name +
                                    "': the shape must have one or more extents, all at least 1, got " +
                                    c10::str(at::IntArrayRef(spec.shape)));
      }
    }
  }
}

}  // namespace

int64_t Parameter::numel() const { return c10::multiply_integers(shape_); }
int64_t Parameter::whole_numel() const { return c10::multiply_integers(whole_shape_); }

std::vector<ElementRun> Parameter::whole_runs(int64_t first, int64_t count) const {
  const Mesh& mesh = model_->mesh();
  return fsdp::whole_runs(whole_shape_, split_, mesh.shape().model, mesh.model_rank(), first, count);
}

at::Tensor Parameter::value() const { return model_->value_of(*this); }

GroupedParameters::GroupedParameters(Mesh& mesh, std::vector<BlockSpec> blocks, const Planner& plan)
    : mesh_(mesh), blocks_(std::move(blocks)) {
  check(blocks_);
  for (size_t u = 0; u < blocks_.size(); ++u) declare(blocks_[u], static_cast<int64_t>(u), plan);
}

void GroupedParameters::declare(const BlockSpec& block, int64_t index, const Planner& plan) {
  std::vector<Parameter*> members[2];  // trainable, frozen
  for (const ParameterSpec& spec : block.parameters) {
    auto parameter = std::make_unique<Parameter>();
    parameter->name_ = spec.name;
    parameter->id_ = static_cast<uint32_t>(parameters_.size());
    parameter->trainable_ = spec.trainable;
    parameter->block_ = index;
    parameter->model_ = this;
    parameter->whole_shape_ = spec.shape;
    parameter->split_ = spec.split;
    parameter->shape_ = part_shape(spec.name, spec.shape, spec.split, mesh_.shape().model);
    if (spec.granule) parameter->granule_ = spec.granule->of(spec.name, parameter->shape_);
    members[spec.trainable ? 0 : 1].push_back(parameter.get());
    parameters_.push_back(std::move(parameter));
  }
  for (const bool trainable : {true, false}) {
    const auto& of_kind = members[trainable ? 0 : 1];
    if (of_kind.empty()) continue;
    auto group = std::make_unique<FlatGroup>();
    group->index_ = static_cast<int64_t>(groups_.size());
    group->block_ = index;
    group->trainable_ = trainable;
    group->parameters_.assign(of_kind.begin(), of_kind.end());
    group->plan_ = plan(group->parameters_, mesh_.shape().shard);
    group->shard_rank_ = mesh_.shard_rank();
    for (size_t t = 0; t < of_kind.size(); ++t) {
      of_kind[t]->group_ = group.get();
      of_kind[t]->offset_ = group->plan_.offset(static_cast<int64_t>(t));
    }
    groups_.push_back(std::move(group));
  }
}

void GroupedParameters::allocate_shards(at::ScalarType dtype) {
  for (const auto& group : groups_) {
    group->shard_ = at::zeros({group->plan_.shard_size()}, at::dtype(dtype).device(device()));
  }
}

int64_t GroupedParameters::parameter_count() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->whole_numel();
  return sum;
}

int64_t GroupedParameters::trainable_parameter_count() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->trainable() ? parameter->whole_numel() : 0;
  return sum;
}

const Parameter& GroupedParameters::parameter(const std::string& name) const {
  for (const auto& parameter : parameters_) {
    if (parameter->name() == name) return *parameter;
  }
  throw std::out_of_range("the model has no parameter '" + name + "'");
}

bool GroupedParameters::block_trainable(int64_t block) const {
  for (const ParameterSpec& spec : blocks_.at(static_cast<size_t>(block)).parameters) {
    if (spec.trainable) return true;
  }
  return false;
}

}  // namespace ghostshard::fsdp
