#include "examples/gpt2/attention.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numeric>

namespace ghostshard::tests {
namespace {

using gpt2::AttentionPlan;

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
    {"descending", {32, 31, 31, 30}},
    {"equal_ones_apart", {100, 3, 90, 2, 1, 100}},
    {"texts_without_rows", {0, 4, 0, 0, 9, 0}},
    {"many", {17, 3, 64, 5, 5, 33, 1, 17, 80, 2, 2, 64, 12}},
};

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, EqualsOneTextAtATimeForwardAndBackward) {
  const auto& lengths = GetParam().lengths;
  constexpr int64_t kHeads = 2, kWidth = 12;
  at::manual_seed(1);
  const AttentionPlan plan(documents_of(lengths));
  const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  int64_t computed = 0;
  for (const auto& group : plan.groups()) computed += group.texts * group.length;
  EXPECT_EQ(computed, rows) << "no row is computed for nothing";
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
  const AttentionPlan plan(documents);
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

// Bit by bit: else the rounding of one text would tell of its neighbours.
TEST_P(Attention, ATextComesOutTheSameWhoeverIsBesideIt) {
  const auto& lengths = GetParam().lengths;
  constexpr int64_t kHeads = 2, kWidth = 128;
  const auto documents = documents_of(lengths);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(3);
    const at::Tensor values = at::randn({documents.rows(), 3 * kWidth}).to(dtype);
    const at::Tensor weight = at::randn({documents.rows(), kWidth}).to(dtype);
    const auto outcome = [&](const kernels::Segments& texts, const at::Tensor& rows, const at::Tensor& gradient) {
      const at::Tensor qkv = rows.detach().clone().requires_grad_();
      const at::Tensor out = AttentionPlan(texts).attend(qkv, kHeads);
      out.backward(gradient.contiguous());
      return std::pair(out.detach(), qkv.grad());
    };
    const auto [together, together_gradient] = outcome(documents, values, weight);
    for (int64_t text = 0; text < documents.units(); ++text) {
      if (documents.length(text) == 0) continue;
      const auto of = [&](const at::Tensor& x) { return x.narrow(0, documents.begin(text), documents.length(text)); };
      const auto [alone, alone_gradient] = outcome(documents_of({documents.length(text)}), of(values), of(weight));
      EXPECT_TRUE(at::equal(of(together), alone)) << dtype << ", text " << text;
      EXPECT_TRUE(at::equal(of(together_gradient), alone_gradient)) << dtype << ", text " << text << ", gradient";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Attention, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace ghostshard::tests
