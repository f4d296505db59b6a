// Which buffer holds which block, of which weight version, and for how many leases.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/parameters.h"

namespace ghostshard::fsdp {

class BlockBuffers {
 public:
  BlockBuffers(Mesh& mesh, const std::vector<BlockSpec>& specs, const std::vector<std::unique_ptr<FlatGroup>>& groups,
               at::ScalarType compute_dtype);

  void prefetch(int64_t block);
  void acquire(int64_t block);
  void release(int64_t block);
  bool gathered(int64_t block) const;
  // True if the block could be acquired now: no other block in its buffer is leased.
  bool available(int64_t block) const;
  const at::Tensor& flat(const FlatGroup& group) const { return flat_[static_cast<size_t>(group.index())]; }
  void invalidate();  // waits for gathers, then marks all contents out of date
  void wait_for_gathers();
  int64_t gathers() const { return gathers_; }

  // reset_leases() begins another epoch. A release of an earlier epoch is ignored, because its lease was taken back.
  uint64_t epoch() const { return epoch_; }
  void release_of_epoch(int64_t block, uint64_t epoch) noexcept;
  void reset_leases();

 private:
  struct Slot {
    int64_t owner = -1;    // block whose weights it holds or is receiving
    int64_t version = -1;  // of the weights
    std::vector<std::unique_ptr<PendingCollective>> pending;
    at::Tensor memory;  // undefined with one rank
  };
  struct Block {
    std::string name;
    size_t slot = 0;
    int64_t leases = 0;
    std::vector<const FlatGroup*> groups;
  };

  Block& block_at(int64_t block);
  const Block& block_at(int64_t block) const;
  bool current(int64_t block) const;  // there or under way
  void wait_for(Slot& slot);
  // This rank's shard in the compute dtype, rounded once per weight version; the shard itself if that is float32.
  at::Tensor outgoing(const FlatGroup& group);

  Mesh& mesh_;
  std::vector<Block> blocks_;
  std::vector<Slot> slots_;
  std::vector<at::Tensor> flat_;  // [flat_size] by group index: views of slots, or the shards themselves
  at::ScalarType compute_dtype_;
  std::vector<at::Tensor> rounded_;  // [shard_size] by group index; undefined if the compute dtype is float32
  std::vector<int64_t> rounded_version_;
  int64_t version_ = 0;
  uint64_t epoch_ = 0;
  int64_t gathers_ = 0;
};

}  // namespace ghostshard::fsdp
