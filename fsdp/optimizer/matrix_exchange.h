// Brings whole matrices, or whole rows of them, to one rank each, and the results back: for optimizers that look at
// more than one element at a time.
//
// Every matrix, or every `rows` rows of one, has an owner on the shard axis. What one rank holds whole stays there; the
// rest is dealt out in falling order of cost, each part to the rank with the least work so far. Parts travel in rounds
// of a few an owner, by one all-to-all there and one back; while a round is computed the next one is under way. Each
// element that its owner does not hold travels twice, once there and once back, for each call of run(), and slices are
// padded to the longest of the round. A round whose parts all are where they belong sends nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/optimizer/owned_slices.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

// Owners of matrices with these costs among `ranks`, in the order of the costs: each to the rank with the least work so
// far, dearest first. fixed: for each matrix the rank that must have it, or -1.
std::vector<int64_t> deal_out(const std::vector<double>& costs, const std::vector<int64_t>& fixed, int64_t ranks);

// A whole matrix, or some of its rows.
struct MatrixPart {
  const Parameter* parameter;
  int64_t first_row;
  int64_t rows;
  int64_t columns() const { return parameter->shape()[1]; }
  int64_t elements() const { return rows * columns(); }
};

// The trainable parameters of two extents that are chosen. std::invalid_argument naming the first that the model axis
// cuts, and the optimizer.
Chosen whole_matrices(const GroupedParameters& model, const Chosen& wanted, const char* optimizer);

class MatrixExchange {
 public:
  // The trainable parameters that are chosen, which must have two extents and not be cut over the model axis. rows: of
  // a part, the last one of a matrix may have fewer; none: all of them.
  MatrixExchange(const GroupedParameters& model, const Chosen& chosen, std::optional<int64_t> rows = std::nullopt);
  ~MatrixExchange();

  // slice: what this rank gives of its part of a matrix, flat [count]. compute: from a whole part [rows, columns]
  // another one of its shape, on its owner. take: this rank's share of that, flat [count]. A collective over the shard
  // axis; for one part the three are called in this order, and slice and take for every range that this rank owns.
  // compute must not change what it is given: it may be what slice gave.
  using Slice = std::function<at::Tensor(const FlatGroup& group, const OwnedRange& range)>;
  using Compute = std::function<at::Tensor(const MatrixPart& part, const at::Tensor& matrix)>;
  using Take = std::function<void(const FlatGroup& group, const OwnedRange& range, const at::Tensor& values)>;
  void run(const Slice& slice, const Compute& compute, const Take& take);

  // Those that this rank computes, in the order in which run() does.
  std::vector<MatrixPart> computed_here() const;
  // The most that run() holds at a time on any rank: messages, whole parts and results, without what compute needs.
  int64_t buffer_bytes() const;
  int64_t largest_part_bytes() const;

 private:
  struct Matrix;
  struct Round;
  struct Message;
  static std::vector<Matrix> parts_of(const GroupedParameters& model, const Chosen& chosen,
                                      std::optional<int64_t> rows);
  static void lay_out(Round& round);
  Message send(const Round& round, const Slice& slice);
  std::vector<at::Tensor> whole_parts(const Round& round, Message& received) const;
  Message send_back(const Round& round, const std::vector<at::Tensor>& results);
  void take_back(const Round& round, Message& received, const Take& take) const;
  Message message_of(const Round& round) const;
  int64_t message_bytes(const Round& round) const;

  const GroupedParameters& model_;
  std::vector<Round> rounds_;
};

}  // namespace ghostshard::fsdp
