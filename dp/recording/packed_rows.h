// A microbatch of texts laid end to end, several to a batch row: which rows of a layer are whose.
//
// The tokens have extents [N] or [B,T]. A layer's rows are taken for theirs where its input begins with the same
// extents, or with [N] or [1,N] (N = B·T, flattened); what follows before the last extent multiplies: some rows for
// each token (heads). Every row is some unit's, padding too, so that no gradient there escapes a norm. Where a unit is
// a user, rows of one unit may stand apart; then rows are put in order as they are recorded, and only then.
//
// That tokens keep their places is taken from extents alone. A layer that moves them breaks it:
// dp/recording/attribution.h looks.
#pragma once

#include <optional>
#include <vector>

#include "dp/recording/recorder.h"

namespace ghostshard::dp {

class PackedRows {
 public:
  // offsets [U+1] over the N rows, taken in the order of `order` (int64 [N] in host memory, each row once), or as they
  // stand where it is undefined. one_for_each: inputs [U, ...] may hold one row for each unit instead (what a model
  // pools of its texts, so only where each unit is one text). rows_on: the device of layers' rows.
  // std::invalid_argument where these do not fit each other.
  PackedRows(std::vector<int64_t> extents, std::vector<int64_t> offsets, const at::Tensor& order, bool one_for_each,
             at::Device rows_on = at::kCPU);

  int64_t units() const { return tokens_.units(); }
  bool same_as(const PackedRows& other) const;
  // Token or position ids [1,T] stand for all of B rows.
  at::Tensor for_all_rows(const at::Tensor& ids) const;

  struct Use {
    SegmentsPtr segments;
    RecorderPtr recorder;
  };
  // How rows of an input are recorded whose extents before those of one row are `leading`; nothing: not rows of these
  // texts. Tokens go before units where both fit.
  std::optional<Use> use(at::IntArrayRef leading, const RecorderPtr& tape) const;

 private:
  std::vector<int64_t> extents_;
  kernels::Segments tokens_;
  at::Tensor order_, order_there_;  // in host memory, and where the rows are; or undefined
  bool one_for_each_;
};

}  // namespace ghostshard::dp
