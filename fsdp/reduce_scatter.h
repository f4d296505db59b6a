// Sums flat gradient buffers over the ranks, each rank keeping its slice.
//
// Slices are exchanged by all-to-all, and their owner adds them up in float32, in rank order, onto starting values of
// its own. (W−1)/W of the buffer leaves each rank once (Gloo's own reduce-scatter is an all-reduce: twice that), the
// order is fixed, and the sum without the owner's starting values never exists anywhere.
//
// With a replicate axis every replica does this on its own, and the replicas' slices are then added in order of
// replicas, beginning with replica 0. Only replica 0's starting values count; other replicas start from zero, whatever
// they hold. So another replica forms the contribution of its own ranks alone, and the sum of all ranks exists only on
// top of replica 0's starting values. All replicas end with the same bits.
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
  // streamed: by group index (empty: none), the groups whose sum never stands whole. They have a buffer only from
  // open_streamed() to close_streamed(). The other groups' buffers are allocated once.
  GradientBuffers(const GroupedParameters& model, std::vector<bool> streamed);
  bool streamed(const FlatGroup& group) const;
  bool any_streamed() const;
  // A buffer of zeros, or the group's buffer if it is open; flat() returns the same until close_streamed().
  // std::logic_error unless the group is streamed.
  at::Tensor open_streamed(const FlatGroup& group);
  void close_streamed(const FlatGroup& group);  // a caller that holds the tensor keeps it
  // [buffer_size]; throws std::invalid_argument for a frozen group, and for a streamed one that is not open
  at::Tensor flat(const FlatGroup& group) const;
  at::Tensor view(const Parameter& parameter) const;  // [shape]
  void zero();                                        // the groups that are not streamed

 private:
  std::vector<at::Tensor> flat_;  // by group index; undefined for frozen groups
  std::vector<bool> streamed_;
  at::Device device_;
};

// Shard-size float32 buffers [shard_size] for the trainable groups, on the model's device: noise, sums, gradients.
class ShardBuffers {
 public:
  // On the model's device, or in host memory (page-locked if the model is on a device).
  explicit ShardBuffers(const GroupedParameters& model, bool on_host = false);
  at::Tensor shard(const FlatGroup& group) const;  // throws std::invalid_argument for a frozen group
  void zero();

 private:
  std::vector<at::Tensor> shard_;
};

// Reductions of one group each, in the same order on every rank. At most two are in flight. fsdp/reduce_pipeline.h
// keeps two in flight.
class ReduceScatter {
 public:
  explicit ReduceScatter(GroupedParameters& model);
  ~ReduceScatter();

  // Starts sending message [buffer_size], which must stay unchanged until finish() of the same group and is held till
  // then. (If shards are no slices of it, the elements that they own are copied out here, and the message is not held.)
  // Message buffers exist only while in flight.
  void begin(const FlatGroup& group, at::Tensor message);
  // own [shard_size] holds starting values before the call and the sum, in rank order as above, after it. Starting
  // values of replicas other than 0 are ignored. Groups finish in the order they began (std::logic_error).
  void finish(const FlatGroup& group, at::Tensor own);
  // Drops what is in flight after a failure. std::logic_error if it is in flight between ranks: messages cannot be
  // called back.
  void forget();

 private:
  struct InFlight;
  GroupedParameters& model_;
  std::deque<std::unique_ptr<InFlight>> in_flight_;
};

}  // namespace ghostshard::fsdp
