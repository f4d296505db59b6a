// The elements of some of a model's trainable parameters that this rank owns, as slices of its shards, and numbers of
// an optimizer's own for each of them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "fsdp/reduce_scatter.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

class OwnedSlices {
 public:
  // Neighbours in a shard make one slice: fewer, longer slices.
  OwnedSlices(const ShardedModel& model, const Chosen& chosen);

  std::vector<at::Tensor> weights() const;
  std::vector<at::Tensor> of(const ShardBuffers& buffers) const;
  // Cuts a flat tensor [elements()], one slice after the other.
  std::vector<at::Tensor> of(const at::Tensor& states) const;
  int64_t elements() const { return elements_; }
  // Where a range of a group's shard lies in such a flat tensor; -1 if it is not among the slices.
  int64_t find(const FlatGroup& group, const OwnedRange& range) const;

 private:
  struct Slice {
    const FlatGroup* group;
    int64_t shard_offset;
    int64_t count;
    int64_t state_offset;  // in a flat tensor of states
  };
  std::vector<Slice> slices_;
  int64_t elements_ = 0;
};

}  // namespace ghostshard::fsdp
