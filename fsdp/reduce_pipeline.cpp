#include "fsdp/reduce_pipeline.h"

#include <utility>

namespace ghostshard::fsdp {

const FlatGroup* ReducePipeline::push(const FlatGroup& group, at::Tensor message) {
  reduction_.begin(group, std::move(message));
  const FlatGroup* const before = std::exchange(under_way_, &group);
  if (before != nullptr) finish(*before);
  return before;
}

const FlatGroup* ReducePipeline::drain() {
  if (under_way_ != nullptr) finish(*under_way_);
  return std::exchange(under_way_, nullptr);
}

void ReducePipeline::forget() {
  reduction_.forget();
  under_way_ = nullptr;
}

}  // namespace ghostshard::fsdp
