// Parameters that somebody else stores, gathers and updates: PyTorch's fully_shard (FSDP2), DistributedDataParallel, or
// a plain module. This class knows names, shapes and which rank owns which rows; it holds no weights.
//
// Sharding is fully_shard's own: every parameter is cut along its first extent as torch.chunk cuts, ceil(rows/W) rows
// to a rank, so that the last ranks may own fewer rows or none (ShardPlan::by_rows). This rank's rows of a group lie in
// the plan's order, each parameter contiguous, as in the DTensor's local tensor.
#pragma once

#include "fsdp/parameters.h"

namespace ghostshard::fsdp {

class ForeignModel final : public GroupedParameters {
 public:
  // Throws std::invalid_argument as GroupedParameters does.
  ForeignModel(Mesh& mesh, std::vector<BlockSpec> blocks);

  // The tensor that its owner computes with, [shape] while it is gathered. (Its storage may be freed and filled again
  // in between, as fully_shard does.) Throws std::invalid_argument naming parameter and shapes.
  void set_value(const Parameter& parameter, const at::Tensor& value);

 private:
  at::Tensor value_of(const Parameter& parameter) const override;
  std::vector<at::Tensor> values_;  // by parameter id
};

}  // namespace ghostshard::fsdp
