// Autograd's graph of a forward may outlive the session that recorded it. Its backward is refused then, by a sentence,
// before it looks at parameters that may be gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "tests/dp/run/session_world.h"
#include "tests/support/keys.h"

namespace ghostshard::dp {
namespace {

using testing::HasSubstr;
using tests::key_of;

const char* const kEnded = "came between the forward of this loss and its backward";

std::unique_ptr<Session> new_session(const SessionOptions& options = {}) {
  auto session = std::make_unique<Session>(fsdp::Mesh::single(), some_blocks(), options, key_of(1));
  session->set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(1.0));
  return session;
}

// Autograd may wrap what a node throws: the sentence counts.
void expect_refused(const at::Tensor& loss) {
  try {
    loss.backward();
    FAIL() << "was accepted";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr(kEnded));
  }
}

struct OneLayer {
  const char* name;
  std::function<at::Tensor(Session&, const std::vector<at::Tensor>& weights, const at::Tensor& x)> forward;
};
void PrintTo(const OneLayer& layer, std::ostream* out) { *out << layer.name; }

class OutlivedSession : public testing::TestWithParam<OneLayer> {
 protected:
  at::Tensor forward(Session& session) { return GetParam().forward(session, weights_, x_).sum(); }
  std::vector<at::Tensor> weights_ = some_weights(at::kFloat);
  // It requires a gradient, so that backward reads the weight too.
  at::Tensor x_ = at::ones({2, kLength, kWidth}).set_requires_grad(true);
};

INSTANTIATE_TEST_SUITE_P(
    , OutlivedSession,
    testing::Values(OneLayer{"linear",
                             [](Session& session, const auto& w, const at::Tensor& x) {
                               return session.linear(kMatrix, kBias, false, x, w[kMatrix], w[kBias]);
                             }},
                    OneLayer{"transposed",
                             [](Session& session, const auto& w, const at::Tensor& x) {
                               return session.linear(kHead, -1, true, x, w[kHead], std::nullopt);
                             }},
                    OneLayer{"embedding",
                             [](Session& session, const auto& w, const at::Tensor& /*x*/) {
                               return session.embedding(kTable, ids_of(0, 2), w[kTable], -1);
                             }},
                    OneLayer{"tied",
                             [](Session& session, const auto& w, const at::Tensor& /*x*/) {
                               const at::Tensor looked_up = session.embedding(kTable, ids_of(0, 2), w[kTable], -1);
                               return session.linear(kTable, -1, false, looked_up, w[kTable], std::nullopt);
                             }},
                    OneLayer{"layer_norm",
                             [](Session& session, const auto& w, const at::Tensor& x) {
                               return session.layer_norm(kScale, kShift, x, 1e-5, w[kScale], w[kShift]);
                             }},
                    OneLayer{"affine",
                             [](Session& session, const auto& w, const at::Tensor& x) {
                               return session.affine(kScale, kShift, x, w[kScale], w[kShift]);
                             }}),
    [](const auto& test) { return test.param.name; });

TEST_P(OutlivedSession, IsNamedByItsBackward) {
  auto session = new_session();
  session->begin_microbatch(2);
  const at::Tensor loss = forward(*session);
  session.reset();
  expect_refused(loss);
}

TEST_P(OutlivedSession, IsNamedByTheBackwardOfAPackedBatch) {
  auto session = new_session();
  // One unit's rows stand apart, so that they are put in order on their way to the tape.
  const at::Tensor order =
      at::cat({at::arange(0, 2 * kLength, 2, at::kLong), at::arange(1, 2 * kLength, 2, at::kLong)});
  session->begin_microbatch(std::make_shared<PackedRows>(std::vector<int64_t>{2, kLength},
                                                         std::vector<int64_t>{0, kLength, 2 * kLength}, order,
                                                         /*one_for_each=*/false));
  const at::Tensor loss = forward(*session);
  session.reset();
  expect_refused(loss);
}

// As Python's training loops end one: they give the microbatch up first.
TEST_P(OutlivedSession, IsNamedIfItsMicrobatchWasGivenUpBefore) {
  auto session = new_session();
  session->begin_microbatch(2);
  const at::Tensor loss = forward(*session);
  session->abandon();
  session.reset();
  auto other = new_session();
  other->begin_microbatch(2);
  const at::Tensor of_other = forward(*other);
  expect_refused(loss);
  EXPECT_NO_THROW(of_other.backward());
}

// A second pass adds to sums that end with the session.
TEST_P(OutlivedSession, IsNamedBetweenTwoPasses) {
  SessionOptions options;
  options.memory_budget_bytes = 0;
  auto session = new_session(options);
  session->begin_microbatch(2);
  const at::Tensor loss = forward(*session);
  loss.backward({}, /*retain_graph=*/true);
  ASSERT_TRUE(session->second_pass());
  session.reset();
  expect_refused(loss);
}

TEST(GivenUpTape, RefusesInstantiatedGradientsWhateverSessionBringsThem) {
  auto first = new_session();
  first->begin_microbatch(2);
  const auto tape = first->tape();
  first.reset();
  auto blocks = some_blocks();
  blocks.back().parameters.back().trainable = false;  // which alone would be a reason to record nothing
  Session second(fsdp::Mesh::single(), blocks, {}, key_of(1));
  second.begin_microbatch(2);
  EXPECT_THROW(second.instantiated(tape, kGain, at::ones({2, kWidth})), std::logic_error);
  EXPECT_NO_THROW(second.instantiated(second.tape(), kGain, at::ones({2, kWidth})));
}

}  // namespace
}  // namespace ghostshard::dp
