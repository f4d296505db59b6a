#include "fsdp/optimizer/owned_slices.h"

namespace ghostshard::fsdp {

OwnedSlices::OwnedSlices(const ShardedModel& model, const Chosen& chosen) {
  for (const auto& group : model.groups()) {
    if (!group->trainable()) continue;
    int64_t end = -1;  // of the last slice
    for (const OwnedRange& range : group->owned()) {
      if (!chosen(*group->parameters()[static_cast<size_t>(range.tensor)])) continue;
      if (range.shard_offset == end) {
        slices_.back().count += range.count;
      } else {
        slices_.push_back({group.get(), range.shard_offset, range.count, elements_});
      }
      end = range.shard_offset + range.count;
      elements_ += range.count;
    }
  }
}

std::vector<at::Tensor> OwnedSlices::weights() const {
  std::vector<at::Tensor> cut;
  cut.reserve(slices_.size());
  for (const Slice& slice : slices_) cut.push_back(slice.group->shard().narrow(0, slice.shard_offset, slice.count));
  return cut;
}

std::vector<at::Tensor> OwnedSlices::of(const ShardBuffers& buffers) const {
  std::vector<at::Tensor> cut;
  cut.reserve(slices_.size());
  for (const Slice& slice : slices_) {
    cut.push_back(buffers.shard(*slice.group).narrow(0, slice.shard_offset, slice.count));
  }
  return cut;
}

std::vector<at::Tensor> OwnedSlices::of(const at::Tensor& states) const {
  std::vector<at::Tensor> cut;
  cut.reserve(slices_.size());
  for (const Slice& slice : slices_) cut.push_back(states.narrow(0, slice.state_offset, slice.count));
  return cut;
}

int64_t OwnedSlices::find(const FlatGroup& group, const OwnedRange& range) const {
  for (const Slice& slice : slices_) {
    const int64_t within = range.shard_offset - slice.shard_offset;
    if (slice.group == &group && within >= 0 && within + range.count <= slice.count) return slice.state_offset + within;
  }
  return -1;
}

}  // namespace ghostshard::fsdp
