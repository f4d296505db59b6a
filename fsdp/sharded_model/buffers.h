// Which buffer holds which block, of which weight version, and for how many leases.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/gather_code.h"
#include "fsdp/parameters.h"
#include "fsdp/sharded_model/coded_messages.h"

namespace ghostshard::fsdp {

class BlockBuffers {
 public:
  BlockBuffers(Mesh& mesh, const std::vector<BlockSpec>& specs, const std::vector<std::unique_ptr<FlatGroup>>& groups,
               at::ScalarType compute_dtype, std::shared_ptr<const GatherCode> code);

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
    std::vector<at::Tensor> messages;  // of all ranks, by the owner's groups, until they are decoded
    at::Tensor memory;                 // undefined with one rank
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
  void lay_out(const std::vector<std::unique_ptr<FlatGroup>>& groups);
  void wait_for(Slot& slot);
  // Makes a gathered group's values out of messages.
  void decode(const FlatGroup& group, const at::Tensor& messages) const;
  // What this rank sends of its shard, made once per weight version: codes, or the shard rounded to the compute dtype;
  // the shard itself if it has that dtype. With one rank the group's values follow from it at once.
  at::Tensor outgoing(const FlatGroup& group);

  Mesh& mesh_;
  std::vector<Block> blocks_;
  std::vector<Slot> slots_;
  std::vector<at::Tensor> flat_;  // [flat_size] by group index: views of slots, or the shards themselves
  at::ScalarType compute_dtype_;
  std::shared_ptr<const GatherCode> code_;  // none: weights travel as they are
  std::vector<CodedMessages> coded_;        // by group index, if there is a code
  // By group index: the shard in the compute dtype [shard_size], or its message; undefined if the shard itself travels.
  std::vector<at::Tensor> sent_;
  std::vector<int64_t> sent_version_;
  int64_t version_ = 0;
  uint64_t epoch_ = 0;
  int64_t gathers_ = 0;
};

}  // namespace ghostshard::fsdp
