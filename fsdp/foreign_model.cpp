#include "fsdp/foreign_model.h"

#include <stdexcept>

namespace ghostshard::fsdp {
namespace {

ShardPlan plan_rows(const std::vector<const Parameter*>& parameters, int64_t world_size) {
  std::vector<TensorSpec> specs;
  for (const Parameter* parameter : parameters)
    specs.push_back({.name = parameter->name(), .shape = parameter->shape()});
  return ShardPlan::by_rows(std::move(specs), world_size);
}

}  // namespace

ForeignModel::ForeignModel(Mesh& mesh, std::vector<BlockSpec> blocks)
    : GroupedParameters(mesh, std::move(blocks), plan_rows), values_(parameters().size()) {}

void ForeignModel::set_value(const Parameter& parameter, const at::Tensor& value) {
  if (!value.defined() || value.sizes() != at::IntArrayRef(parameter.shape())) {
    throw std::invalid_argument("parameter '" + parameter.name() + "': its value must have the shape it was declared " +
                                "with, got " + (value.defined() ? c10::str(value.sizes()) : "an undefined tensor"));
  }
  values_[parameter.id()] = value.detach();
}

at::Tensor ForeignModel::value_of(const Parameter& parameter) const {
  const at::Tensor& value = values_[parameter.id()];
  if (!value.defined() || value.storage().nbytes() < static_cast<size_t>(value.numel() * value.itemsize())) {
    throw std::logic_error("parameter '" + parameter.name() + "': its values are not gathered now");
  }
  return value;
}

}  // namespace ghostshard::fsdp
