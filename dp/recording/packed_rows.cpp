#include "dp/recording/packed_rows.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

namespace ghostshard::dp {
namespace {

// Hands rows on with those of each unit together.
class InOrder final : public Recorder {
 public:
  InOrder(RecorderPtr next, at::Tensor order) : next_(std::move(next)), order_(std::move(order)) {}

  void require_open() const override { next_->require_open(); }
  void linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) override {
    next_->linear(use, rows(a), rows(g), segments);
  }
  void embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                 const SegmentsPtr& segments) override {
    next_->embedding(table, rows(ids), rows(g), segments);
  }
  void layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                  const SegmentsPtr& segments) override {
    next_->layer_norm(use, x_hat.defined() ? rows(x_hat) : x_hat, rows(g), segments);
  }
  void instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) override {
    next_->instantiated(parameter, gradients);
  }

 private:
  // A token's rows (one, or one for each head) move together.
  at::Tensor rows(const at::Tensor& x) const {
    const at::NoGradGuard no_grad;
    return x.reshape({order_.size(0), -1}).index_select(0, order_).view(x.sizes());
  }

  RecorderPtr next_;
  at::Tensor order_;
};

bool starts_with(at::IntArrayRef extents, at::IntArrayRef first) {
  return extents.size() >= first.size() && extents.slice(0, first.size()) == first;
}

SegmentsPtr multiplied(const kernels::Segments& segments, int64_t times) {
  std::vector<int64_t> offsets = segments.offsets();
  for (int64_t& offset : offsets) offset *= times;
  return std::make_shared<kernels::Segments>(std::move(offsets));
}

}  // namespace

PackedRows::PackedRows(std::vector<int64_t> extents, std::vector<int64_t> offsets, const at::Tensor& order,
                       bool one_for_each, at::Device rows_on)
    : extents_(std::move(extents)), tokens_(std::move(offsets)), order_(order), one_for_each_(one_for_each) {
  const int64_t rows = c10::multiply_integers(extents_);
  TORCH_CHECK_VALUE(!extents_.empty() && extents_.size() <= 2 && rows == tokens_.rows(),
                    "packed tokens have extents [N] or [B,T] and offsets over all their rows, got ",
                    at::IntArrayRef(extents_), " and offsets up to ", tokens_.rows());
  if (!order_.defined()) return;
  TORCH_CHECK_VALUE(order_.device().is_cpu(), "an order of rows is given in host memory, got one on ", order_.device());
  TORCH_CHECK_VALUE(order_.dim() == 1 && order_.scalar_type() == at::kLong &&
                        std::get<0>(order_.sort()).equal(at::arange(rows, at::kLong)),
                    "an order of ", rows, " rows names each of them once, got ", order_.scalar_type(), " ",
                    order_.sizes());
  order_there_ = order_.to(rows_on, at::kLong, /*non_blocking=*/true);
}

bool PackedRows::same_as(const PackedRows& other) const {
  return extents_ == other.extents_ && tokens_.offsets() == other.tokens_.offsets() &&
         one_for_each_ == other.one_for_each_ && order_.defined() == other.order_.defined() &&
         (!order_.defined() || order_.equal(other.order_));
}

at::Tensor PackedRows::for_all_rows(const at::Tensor& ids) const {
  const bool one_row = extents_.size() == 2 && ids.dim() == 2 && ids.size(0) == 1 && ids.size(1) == extents_[1];
  return one_row ? ids.expand(extents_) : ids;
}

std::optional<PackedRows::Use> PackedRows::use(at::IntArrayRef leading, const RecorderPtr& tape) const {
  const int64_t n = tokens_.rows();
  const std::vector<int64_t> row_of_all{1, n};
  for (const at::IntArrayRef tokens : {at::IntArrayRef(extents_), at::IntArrayRef(n), at::IntArrayRef(row_of_all)}) {
    if (!starts_with(leading, tokens)) continue;
    const SegmentsPtr segments = multiplied(tokens_, c10::multiply_integers(leading.slice(tokens.size())));
    return Use{segments, order_.defined() ? std::make_shared<InOrder>(tape, order_there_) : tape};
  }
  if (!one_for_each_ || leading.empty() || leading[0] != units()) return std::nullopt;
  const int64_t rows_each = c10::multiply_integers(leading.slice(1));
  return Use{std::make_shared<kernels::Segments>(kernels::Segments::even(units(), rows_each)), tape};
}

}  // namespace ghostshard::dp
