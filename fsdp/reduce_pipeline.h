// Reductions of one group after the other, two of them under way: while one group's messages are in flight, the next
// group's message is sent off and the starting values of this one are made.
#pragma once

#include <functional>

#include "fsdp/reduce_scatter.h"

namespace ghostshard::fsdp {

class ReducePipeline {
 public:
  // Returns own [shard_size]: it holds the starting values of a group, and its sum is added to them
  // (fsdp/reduce_scatter.h). Asked for once for each message, after it was sent off and before any value of another
  // rank is added to it.
  using Own = std::function<at::Tensor(const FlatGroup&)>;
  ReducePipeline(GroupedParameters& model, Own own) : reduction_(model), own_(std::move(own)) {}

  // Sends a group's message [buffer_size] off (as ReduceScatter::begin), then finishes the group that was pushed before
  // it. Returns that group, or nullptr if there is none. A collective: all ranks push the same groups in one order.
  const FlatGroup* push(const FlatGroup& group, at::Tensor message);
  // Finishes the group that was pushed last. Returns it, or nullptr if all are finished.
  const FlatGroup* drain();
  // Every group that was pushed is finished. After an exception in push() or drain() this stays false until forget().
  bool idle() const { return under_way_ == nullptr; }
  // Drops what a failure left under way. std::logic_error between ranks, as ReduceScatter::forget.
  void forget();

 private:
  void finish(const FlatGroup& group) { reduction_.finish(group, own_(group)); }

  ReduceScatter reduction_;
  Own own_;
  const FlatGroup* under_way_ = nullptr;
};

}  // namespace ghostshard::fsdp
