// Brings whole matrices to one rank each, and the results back: for optimizers that look at a matrix as a whole.
//
// Every matrix has an owner on the shard axis. A matrix that one rank holds whole stays there; the others are dealt out
// in falling order of cost, each to the rank with the least work so far. They travel in rounds of a few matrices an
// owner, by one all-to-all there and one back; while a round is computed the next one is under way. Each element
// travels twice, once there and once back, for each call of run(), and slices are padded to the longest of the round.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/optimizer/owned_slices.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

// Owners of matrices with these costs among `ranks`, in the order of the costs: each to the rank with the least work so
// far, dearest first. fixed: for each matrix the rank that must have it, or -1.
std::vector<int64_t> deal_out(const std::vector<double>& costs, const std::vector<int64_t>& fixed, int64_t ranks);

class MatrixExchange {
 public:
  // The trainable parameters that are chosen, which must have two extents and not be cut over the model axis.
  MatrixExchange(ShardedModel& model, const Chosen& chosen);
  ~MatrixExchange();

  // slice: what this rank gives of its part of a matrix, flat [count]. compute: from a whole matrix [p, d] another one
  // of its shape, on its owner. take: this rank's part of that, flat [count]. A collective over the shard axis; for one
  // matrix the three are called in this order, and slice and take for every range that this rank owns.
  using Slice = std::function<at::Tensor(const FlatGroup& group, const OwnedRange& range)>;
  using Compute = std::function<at::Tensor(const Parameter& parameter, const at::Tensor& matrix)>;
  using Take = std::function<void(const FlatGroup& group, const OwnedRange& range, const at::Tensor& values)>;
  void run(const Slice& slice, const Compute& compute, const Take& take);

 private:
  struct Matrix;
  struct Round;
  struct Message;
  static std::vector<Matrix> matrices_of(const ShardedModel& model, const Chosen& chosen);
  static void lay_out(Round& round);
  Message send(const Round& round, const Slice& slice);
  std::vector<at::Tensor> whole_matrices(const Round& round, Message& received) const;
  Message send_back(const Round& round, const std::vector<at::Tensor>& results);
  void take_back(const Round& round, Message& received, const Take& take) const;

  ShardedModel& model_;
  std::vector<Round> rounds_;
};

}  // namespace ghostshard::fsdp
