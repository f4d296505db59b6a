// Sums flat gradient buffers over the ranks, each rank keeping its slice.
//
// By all-to-all and a float32 sum in rank order that starts from values of the owner: (W−1)/W of the buffer leaves
// each rank once (Gloo's own reduce-scatter is an all-reduce: twice that), the order is fixed, and the sum without
// the owner's starting values never exists anywhere.
//
// With a replicate axis every replica does so on its own, and the replicas' slices are then added in order of replicas,
// beginning with replica 0. Starting values count once: those of replica 0; other replicas start from zero, whatever
// they hold. So what another replica forms is the contribution of its own ranks, and all ranks' sum exists only on top
// of replica 0's starting values. All replicas end with the same bits.
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <memory>
#include <vector>

#include "fsdp/parameters.h"

namespace ghostshard::fsdp {

// Whole-size float32 buffers [buffer_size] for the trainable groups of a model, on its device, zero at first.
class GradientBuffers {
 public:
  explicit GradientBuffers(const GroupedParameters& model) : GradientBuffers(model, {}) {}
  // streamed: by group index (empty: none), the groups whose sum never stands whole: they have a buffer only from
  // open_streamed() to close_streamed(). The others are allocated once.
  GradientBuffers(const GroupedParameters& model, std::vector<bool> streamed);
  bool streamed(const FlatGroup& group) const;
  bool any_streamed() const;
  at::Tensor open_streamed(
      const FlatGroup& group);                  // zeros, or what it holds if it is open; flat() until close_streamed()
  void close_streamed(const FlatGroup& group);  // whoever holds the tensor keeps it
  // [buffer_size]; throws std::invalid_argument for a frozen group, and for a streamed one that is not open
  at::Tensor flat(const FlatGroup& group) const;
  at::Tensor view(const Parameter& parameter) const;  // [shape]
  void zero();                                        // those that are not streamed

 private:
  std::vector<at::Tensor> flat_;  // by group index; undefined for frozen groups
  std::vector<bool> streamed_;
  at::Device device_;
};

// Shard-size float32 buffers [shard_size] for the trainable groups, on the model's device: noise, sums, gradients.
class ShardBuffers {
 public:
  // On the model's device, or in host memory (page-locked where the model is not).
  explicit ShardBuffers(const GroupedParameters& model, bool on_host = false);
  at::Tensor shard(const FlatGroup& group) const;  // throws std::invalid_argument for a frozen group
  void zero();

 private:
  std::vector<at::Tensor> shard_;
};

// A pipeline of reductions, one per group, in the same order on every rank. At most two are in flight.
class ReduceScatter {
 public:
  explicit ReduceScatter(GroupedParameters& model);
  ~ReduceScatter();

  // Starts sending message [buffer_size]; it must stay unchanged until finish() of the same group, and is held till
  // then. (Where shards are no slices of it, what they own is copied out here, and the message itself let go.) What
  // travels has memory only while it does.
  void begin(const FlatGroup& group, at::Tensor message);
  // own [shard_size]: starting values in, sum out, in rank order as said above; starting values of replicas other than
  // 0 are ignored. Groups finish in the order they began.
  void finish(const FlatGroup& group, at::Tensor own);
  // Drops what is in flight after a failure. std::logic_error between ranks, where it cannot be called back.
  void forget();

 private:
  struct InFlight;
  GroupedParameters& model_;
  std::deque<std::unique_ptr<InFlight>> in_flight_;
};

}  // namespace ghostshard::fsdp
