// Does a unit's gradient reach the rows of other units?
//
// Per-unit norms rest on the answer no: the factor of unit u is made from the rows that are attributed to u, so these
// must hold all that u's loss does to a parameter, and nothing that another unit's loss does. A layer that mixes units
// (attention across the batch or across packed texts, time in the place of the batch, statistics of the batch) breaks
// this without any error. So a backward of the losses of some units alone, the chosen ones, is watched: all gradients
// that layers report for the others must be zero.
//
// The check cannot see rows that depend on another unit's *values* and pass no gradient on (detached statistics), nor a
// path that is closed for the batch at hand. Gradients that are not a number prove nothing, because 0·infinity makes
// them out of one unit's own infinities: a check that met them is undecided.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dp/recording/recorder.h"

namespace ghostshard::dp {

class Attribution final : public Recorder {
 public:
  // chosen [U]: the units whose losses go backward.
  explicit Attribution(std::vector<bool> chosen);

  void linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) override;
  void embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                 const SegmentsPtr& segments) override;
  void layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                  const SegmentsPtr& segments) override;
  void instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) override;
  void head_tile(const LinearUse& use, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                 const at::Tensor& g, const SegmentsPtr& segments) override;

  int64_t units() const { return static_cast<int64_t>(chosen_.size()); }
  // The first parameter of which a unit outside the chosen ones has a gradient; null: there is none. Any later one
  // follows from it.
  const fsdp::Parameter* reached() const { return reached_; }
  // Some unit outside the chosen ones has gradients that are not a number.
  bool undecided() const { return undecided_; }
  // For each parameter, by its id, [U]: the squared gradients that its layers reported for each unit, summed up. A
  // unit's must not depend on which others are chosen beside it: a gradient that is divided by the norm of the whole
  // batch's reaches nobody, and does.
  const std::map<int64_t, std::vector<double>>& masses() const { return masses_; }

 private:
  void look(const fsdp::Parameter& parameter, const at::Tensor& g, const kernels::Segments& segments);

  std::vector<bool> chosen_;
  const fsdp::Parameter* reached_ = nullptr;
  bool undecided_ = false;
  std::map<int64_t, std::vector<double>> masses_;
};

}  // namespace ghostshard::dp
