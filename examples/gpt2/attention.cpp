#include "examples/gpt2/attention.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace ghostshard::gpt2 {
namespace {

// Seconds of one core, forward and backward, fitted roughly; only their ratios matter, and those little: near the
// optimum the cost is flat.
constexpr double kCall = 1e-4;        // a call of its own
constexpr double kRowValue = 6e-9;    // a value of a row of q, k, v: gathered, scattered, and their gradients
constexpr double kPairValue = 2e-10;  // a value of a pair (query, key) of a padded text

double bucket_seconds(int64_t texts, int64_t longest, int64_t width) {
  const auto length = static_cast<double>(longest);
  const double values = static_cast<double>(texts) * length * static_cast<double>(width);
  return kCall + values * (3 * kRowValue + kPairValue * length);
}

at::Tensor long_tensor(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong));
}

}  // namespace

std::vector<LengthBucket> length_buckets(std::span<const int64_t> lengths, int64_t width) {
  // Runs of equal length are never cut: begin[i] is where run i starts.
  std::vector<size_t> begin;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (i > 0 && lengths[i] > lengths[i - 1]) {
      throw std::invalid_argument("lengths must descend, got " + std::to_string(lengths[i]) + " after " +
                                  std::to_string(lengths[i - 1]));
    }
    if (i == 0 || lengths[i] != lengths[i - 1]) begin.push_back(i);
  }
  const size_t runs = begin.size();
  begin.push_back(lengths.size());
  // least[i]: of runs 0 … i−1; first[i]: where the last bucket of that cut starts.
  std::vector<double> least(runs + 1, std::numeric_limits<double>::infinity());
  std::vector<size_t> first(runs + 1, 0);
  least[0] = 0;
  for (size_t end = 1; end <= runs; ++end) {
    for (size_t from = 0; from < end; ++from) {
      const auto texts = static_cast<int64_t>(begin[end] - begin[from]);
      const double cost = least[from] + bucket_seconds(texts, lengths[begin[from]], width);
      if (cost < least[end]) {
        least[end] = cost;
        first[end] = from;
      }
    }
  }
  std::vector<LengthBucket> buckets;
  for (size_t end = runs; end > 0; end = first[end]) {
    const size_t from = begin[first[end]];
    buckets.push_back({.texts = static_cast<int64_t>(begin[end] - from), .longest = lengths[from]});
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

AttentionPlan::AttentionPlan(const kernels::Segments& documents, int64_t width) : rows_(documents.rows()) {
  std::vector<int64_t> order;  // texts with rows, longest first
  for (int64_t text = 0; text < documents.units(); ++text) {
    if (documents.length(text) > 0) order.push_back(text);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return documents.length(a) > documents.length(b); });
  std::vector<int64_t> lengths;
  for (const int64_t text : order) lengths.push_back(documents.length(text));
  buckets_ = length_buckets(lengths, width);
  // Texts of one length: stable sorting left them where they were.
  if (buckets_.size() <= 1 && padded_rows() == rows_) return;
  std::vector<int64_t> gather;
  std::vector<int64_t> place(static_cast<size_t>(rows_));
  size_t next = 0;
  for (const LengthBucket& bucket : buckets_) {
    for (int64_t i = 0; i < bucket.texts; ++i) {
      const int64_t text = order[next++];
      for (int64_t t = 0; t < bucket.longest; ++t) {
        const int64_t row = documents.begin(text) + std::min(t, documents.length(text) - 1);
        if (t < documents.length(text)) place[static_cast<size_t>(row)] = static_cast<int64_t>(gather.size());
        gather.push_back(row);
      }
    }
  }
  gather_ = long_tensor(gather);
  place_ = long_tensor(place);
}

int64_t AttentionPlan::padded_rows() const {
  return std::accumulate(buckets_.begin(), buckets_.end(), int64_t{0},
                         [](int64_t sum, const LengthBucket& b) { return sum + b.texts * b.longest; });
}

at::Tensor AttentionPlan::attend(const at::Tensor& qkv, int64_t heads) const {
  const int64_t d = qkv.size(1) / 3;
  // A rank whose share of a batch is empty still walks through every unit, with no rows.
  if (rows_ == 0) return qkv.slice(1, 0, d);
  const at::Tensor placed = gather_.defined() ? qkv.index_select(0, gather_) : qkv;
  std::vector<int64_t> sizes;
  for (const LengthBucket& bucket : buckets_) sizes.push_back(bucket.texts * bucket.longest);
  // Split, not narrow: its backward joins the parts' gradients in one pass.
  const auto parts = placed.split_with_sizes(sizes, 0);
  std::vector<at::Tensor> mixed;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const LengthBucket& bucket = buckets_[i];
    const auto qkv_of =
        parts[i].view({bucket.texts, bucket.longest, 3, heads, d / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor out =
        at::scaled_dot_product_attention(qkv_of[0], qkv_of[1], qkv_of[2], {}, 0.0, /*is_causal=*/true);
    mixed.push_back(out.transpose(1, 2).reshape({bucket.texts * bucket.longest, d}));
  }
  const at::Tensor joined = mixed.size() == 1 ? mixed.front() : at::cat(mixed, 0);
  return place_.defined() ? joined.index_select(0, place_) : joined;
}

}  // namespace ghostshard::gpt2
