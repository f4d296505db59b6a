// Where every tensor of a flat group lies and which rank owns which elements. Pure arithmetic.
//
// The tensors of a group stand one after the other in a flat buffer of world_size · shard_size elements. Rank r owns
// elements [r·shard_size, (r+1)·shard_size). A shard boundary never cuts a tensor's *granule*. Every tensor is
// contiguous, and padding stands only between tensors and at the end. shard_size is the same on all ranks and as small
// as the planner finds for the given tensor order. Method: veScale-FSDP, arXiv:2602.22437, section on planning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ghostshard::fsdp {

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t granule = 1;  // elements that stay together (fsdp/granule.h); the tensor's last granule may be shorter

  int64_t numel() const;
};

// A run of consecutive elements of one tensor inside one rank's shard.
struct OwnedRange {
  int64_t tensor;        // index into the group's specs
  int64_t first;         // first element, counted within the tensor
  int64_t count;         // elements
  int64_t shard_offset;  // where they lie within the shard
};

class ShardPlan {
 public:
  // alignment: shard_size is a multiple of it. Throws std::invalid_argument for a granule below 1, a negative
  // extent, world_size < 1 or alignment < 1, naming the tensor and the value.
  static ShardPlan make(std::vector<TensorSpec> specs, int64_t world_size, int64_t alignment = 16);

  // The other layout, that of PyTorch's fully_shard: every tensor on its own is cut along its first extent,
  // ceil(rows/W) rows to a rank, fewer or none to the last ranks. The owned rows of all tensors stand one after the
  // other in a shard, in order and without gaps; shard_size is that of rank 0, which owns most. In this layout a rank's
  // shard is no slice of a buffer in which every tensor is contiguous: slices_of_buffer() is false unless world_size
  // is 1.
  static ShardPlan by_rows(std::vector<TensorSpec> specs, int64_t world_size);

  int64_t world_size() const { return world_size_; }
  int64_t shard_size() const { return shard_size_; }
  int64_t flat_size() const { return world_size_ * shard_size_; }
  // Elements of the buffer in which every tensor is contiguous, at offset(tensor). If slices_of_buffer(), it has
  // flat_size() elements, and rank r's shard is its slice [r·shard_size, (r+1)·shard_size).
  int64_t buffer_size() const { return buffer_size_; }
  bool slices_of_buffer() const { return !by_rows_; }
  int64_t padding() const;  // flat_size minus the elements of all tensors
  const std::vector<TensorSpec>& specs() const { return specs_; }
  int64_t offset(int64_t tensor) const { return offsets_[static_cast<size_t>(tensor)]; }
  // The ranges of one rank, in order of shard_offset. Those of all ranks together cover every element of every tensor
  // exactly once. Computed on each call (a plan keeps nothing per rank). Throws std::invalid_argument for a rank that
  // is not there.
  std::vector<OwnedRange> owned(int64_t rank) const;

 private:
  std::vector<TensorSpec> specs_;
  std::vector<int64_t> offsets_;
  int64_t world_size_ = 1;
  int64_t shard_size_ = 0;
  int64_t buffer_size_ = 0;
  bool by_rows_ = false;
};

}  // namespace ghostshard::fsdp
