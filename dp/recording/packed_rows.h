// A microbatch of texts laid end to end, several to a batch row: which unit each row of a layer belongs to.
//
// The tokens have extents [N] or [B,T]. A layer's rows belong to the tokens if its input begins with the same extents,
// or with [N] or [1,N] (N = B·T, flattened). Extents between these and the last one multiply: each token has several
// rows (heads). Every row belongs to some unit, padding too, so that no gradient there escapes a norm. If a unit is a
// user, its rows may stand apart; only then rows are put in order as they are recorded.
//
// Extents alone say that tokens keep their places. A layer that moves tokens breaks this;
// dp/recording/attribution.h checks for it.
#pragma once

#include <optional>
#include <vector>

#include "dp/recording/recorder.h"

namespace ghostshard::dp {

class PackedRows {
 public:
  // offsets [U+1] over the N rows, taken in the order of `order` (int64 [N] in host memory, each row once); if it is
  // undefined, as they stand. one_for_each: inputs [U, ...] may hold one row for each unit instead (a model pools each
  // text into one row, so only if each unit is one text). rows_on: the device of layers' rows.
  // std::invalid_argument if these do not fit each other.
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
  // How the rows of an input are recorded. leading: its extents before those of one row. Nothing if these are not rows
  // of the texts. If both tokens and units fit, tokens are taken.
  std::optional<Use> use(at::IntArrayRef leading, const RecorderPtr& tape) const;

 private:
  std::vector<int64_t> extents_;
  kernels::Segments tokens_;
  at::Tensor order_, order_there_;  // in host memory, and on the device of the rows; or undefined
  bool one_for_each_;
};

}  // namespace ghostshard::dp
