#include "examples/gpt2/attention.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numeric>

namespace ghostshard::tests {
namespace {

using gpt2::AttentionPlan;
using gpt2::LengthBucket;

kernels::Segments documents_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return kernels::Segments(offsets);
}

// One text at a time, in float64.
at::Tensor slow_attention(const at::Tensor& qkv, const std::vector<int64_t>& lengths, int64_t heads) {
  const int64_t d = qkv.size(1) / 3;
  const int64_t size = d / heads;
  std::vector<at::Tensor> texts;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    std::vector<at::Tensor> mixed;
    for (int64_t head = 0; head < heads; ++head) {
      const auto part = [&](int64_t which) {
        return qkv.narrow(0, begin, length).narrow(1, which * d + head * size, size);
      };
      const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
      const at::Tensor scores = (at::mm(part(0), part(1).t()) / std::sqrt(static_cast<double>(size)))
                                    .masked_fill(later, -std::numeric_limits<double>::infinity());
      mixed.push_back(at::mm(scores.softmax(1), part(2)));
    }
    texts.push_back(at::cat(mixed, 1));
    begin += length;
  }
  return at::cat(texts, 0);
}

struct Case {
  const char* name;
  std::vector<int64_t> lengths;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
const Case kCases[] = {
    {"one_text", {7}},
    {"equal_lengths", {5, 5, 5}},
    {"ascending", {1, 2, 3, 40}},
    {"near_lengths_share_a_bucket", {30, 31, 29, 30, 32}},
    {"far_lengths_do_not", {100, 3, 90, 2, 1, 100}},
    {"texts_without_rows", {0, 4, 0, 0, 9, 0}},
    {"many", {17, 3, 64, 5, 5, 33, 1, 17, 80, 2, 2, 64, 12}},
};

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, EqualsOneTextAtATimeForwardAndBackward) {
  const auto& lengths = GetParam().lengths;
  constexpr int64_t kHeads = 2, kWidth = 12;
  at::manual_seed(1);
  const AttentionPlan plan(documents_of(lengths), kWidth);
  const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_GE(plan.padded_rows(), rows);
  const at::Tensor qkv = at::randn({rows, 3 * kWidth}).requires_grad_();
  const at::Tensor exact = qkv.detach().to(at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({rows, kWidth});
  const at::Tensor found = plan.attend(qkv, kHeads);
  const at::Tensor expected = slow_attention(exact, lengths, kHeads);
  (found * weight).sum().backward();
  (expected * weight.to(at::kDouble)).sum().backward();
  // Sums of at most 100 products of order 1 in float32: 100·2^-24 = 6e-6, and a factor for backward's chain of four.
  EXPECT_LT((found - expected).abs().max().item<double>(), 6e-6);
  EXPECT_LT((qkv.grad() - exact.grad()).abs().max().item<double>(), 2.5e-5);
}

TEST_P(Attention, NotANumberStaysInItsText) {
  const auto& lengths = GetParam().lengths;
  constexpr int64_t kHeads = 2, kWidth = 12;
  const auto documents = documents_of(lengths);
  const AttentionPlan plan(documents, kWidth);
  at::manual_seed(2);
  const at::Tensor clean = at::randn({documents.rows(), 3 * kWidth});
  const auto gradient = [&](const at::Tensor& values) {
    const at::Tensor qkv = values.clone().requires_grad_();
    plan.attend(qkv, kHeads).sum().backward();
    return qkv.grad();
  };
  const at::Tensor expected = gradient(clean);
  for (int64_t spoiled = 0; spoiled < documents.units(); ++spoiled) {
    if (documents.length(spoiled) == 0) continue;
    const at::Tensor qkv = clean.clone();
    qkv.narrow(0, documents.begin(spoiled), documents.length(spoiled)).fill_(NAN);
    const at::Tensor found = gradient(qkv);
    for (int64_t text = 0; text < documents.units(); ++text) {
      if (text == spoiled) continue;
      const auto of = [&](const at::Tensor& x) { return x.narrow(0, documents.begin(text), documents.length(text)); };
      EXPECT_TRUE(at::equal(of(found), of(expected))) << "text " << text << " saw text " << spoiled;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Attention, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(LengthBuckets, PadLittleAndCutLittle) {
  using Buckets = std::vector<LengthBucket>;
  const auto buckets = [](std::vector<int64_t> lengths) { return gpt2::length_buckets(lengths, 768); };
  EXPECT_EQ(buckets({}), Buckets{});
  EXPECT_EQ(buckets({9, 9, 9}), (Buckets{{3, 9}}));
  EXPECT_EQ(buckets({100, 100, 100, 99}), (Buckets{{4, 100}})) << "one row is cheaper than a call";
  EXPECT_EQ(buckets({1000, 1000, 10, 10}), (Buckets{{2, 1000}, {2, 10}})) << "a call is cheaper than 1980 rows";
  EXPECT_THROW(buckets({3, 4}), std::invalid_argument);
}

TEST(LengthBuckets, ServeEveryTextOnceAndFit) {
  std::vector<int64_t> lengths;
  for (int64_t i = 300; i > 0; --i) lengths.push_back(1 + i * i % 997);
  std::sort(lengths.rbegin(), lengths.rend());
  size_t next = 0;
  for (const LengthBucket& bucket : gpt2::length_buckets(lengths, 256)) {
    for (int64_t i = 0; i < bucket.texts; ++i) EXPECT_LE(lengths.at(next++), bucket.longest);
  }
  EXPECT_EQ(next, lengths.size());
}

}  // namespace
}  // namespace ghostshard::tests
