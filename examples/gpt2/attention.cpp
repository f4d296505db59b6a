#include "examples/gpt2/attention.h"

#include <algorithm>

namespace ghostshard::gpt2 {
namespace {

at::Tensor long_tensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong)).to(device, at::kLong, true);
}

}  // namespace

AttentionPlan::AttentionPlan(const kernels::Segments& documents, at::Device device) : rows_(documents.rows()) {
  std::vector<int64_t> order;  // texts with rows, longest first
  for (int64_t text = 0; text < documents.units(); ++text) {
    if (documents.length(text) > 0) order.push_back(text);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return documents.length(a) > documents.length(b); });
  std::vector<int64_t> gather, place(static_cast<size_t>(rows_));
  for (const int64_t text : order) {
    const int64_t length = documents.length(text);
    if (groups_.empty() || groups_.back().length != length) groups_.push_back({.texts = 0, .length = length});
    ++groups_.back().texts;
    for (int64_t row = documents.begin(text); row < documents.end(text); ++row) {
      place[static_cast<size_t>(row)] = static_cast<int64_t>(gather.size());
      gather.push_back(row);
    }
  }
  if (std::is_sorted(gather.begin(), gather.end())) return;
  gather_ = long_tensor(gather, device);
  place_ = long_tensor(place, device);
}

at::Tensor AttentionPlan::attend(const at::Tensor& qkv, int64_t heads) const {
  const int64_t d = qkv.size(1) / 3;
  // A rank whose share of a batch is empty still walks through every unit, with no rows.
  if (rows_ == 0) return qkv.slice(1, 0, d);
  const at::Tensor placed = gather_.defined() ? qkv.index_select(0, gather_) : qkv;
  std::vector<int64_t> sizes;
  sizes.reserve(groups_.size());
  for (const Group& group : groups_) sizes.push_back(group.texts * group.length);
  // Split, not narrow: its backward joins the parts' gradients in one pass.
  const auto parts = placed.split_with_sizes(sizes, 0);
  std::vector<at::Tensor> mixed;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const auto [texts, length] = groups_[i];
    const auto qkv_of = parts[i].view({texts, length, 3, heads, d / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor out =
        at::scaled_dot_product_attention(qkv_of[0], qkv_of[1], qkv_of[2], {}, 0.0, /*is_causal=*/true);
    mixed.push_back(out.transpose(1, 2).reshape({texts * length, d}));
  }
  const at::Tensor joined = mixed.size() == 1 ? mixed.front() : at::cat(mixed, 0);
  return place_.defined() ? joined.index_select(0, place_) : joined;
}

}  // namespace ghostshard::gpt2
