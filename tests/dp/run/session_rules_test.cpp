// What a session allows, and in which order.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/dp/run/session_world.h"
#include "tests/support/keys.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using tests::key_of;

class OneRank : public testing::Test {
 protected:
  OneRank() : session_(fsdp::Mesh::single(), some_blocks(), {}, key_of(1)) {
    session_.set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(1.0));
  }
  void microbatch(int64_t first = 0, int64_t units = 2) { forward_and_backward(session_, weights_, first, units); }
  std::vector<at::Tensor> weights_ = some_weights(at::kFloat);
  Session session_;
};

TEST_F(OneRank, releases_a_batch_once) {
  EXPECT_THROW(session_.release(), std::logic_error) << "without a backward";
  microbatch();
  (void)session_.release();
  EXPECT_THROW(session_.release(), std::logic_error) << "twice";
  EXPECT_THROW(session_.clip(), std::logic_error) << "without a forward";
}

TEST_F(OneRank, keeps_what_it_released_from_changing_under_the_next_batch) {
  // Seen while the next batch grows on one draw of noise, two states would differ by sums without noise.
  microbatch();
  const auto first = session_.release();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& each : first) copies.push_back(each.clone());
  microbatch(5);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], copies[i]));
  (void)session_.release();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], copies[i]));
}

TEST_F(OneRank, draws_new_noise_after_a_batch_was_dropped) {
  microbatch();
  const auto kept = session_.release();
  Session other(fsdp::Mesh::single(), some_blocks(), {}, key_of(1));
  other.set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(1.0));
  forward_and_backward(other, weights_, 0, 2);
  other.abandon();
  forward_and_backward(other, weights_, 0, 2);
  const auto again = other.release();
  EXPECT_FALSE(at::allclose(kept[kMatrix], again[kMatrix], 0, 1e-3));
}

TEST_F(OneRank, gives_up_what_a_failed_backward_recorded) {
  microbatch(0);
  const auto alone = session_.release();
  Session other(fsdp::Mesh::single(), some_blocks(), {}, key_of(1));
  other.set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(1.0));
  other.begin_microbatch(2);
  const at::Tensor x = other.embedding(kTable, ids_of(3, 2), weights_[kTable], -1);
  other.linear(kMatrix, kBias, false, x, weights_[kMatrix], weights_[kBias]).sum().backward();
  other.give_up_microbatch();
  forward_and_backward(other, weights_, 0, 2);
  const auto after = other.release();
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(alone[i], after[i]));
}

TEST_F(OneRank, holds_one_pair_of_terms_for_a_batch) {
  microbatch(0);
  session_.set_terms(accountant::ClipNorm(1000 * kClipNorm), accountant::NoiseMultiplier(1.0));
  microbatch(5);
  const auto first = session_.release();
  Session other(fsdp::Mesh::single(), some_blocks(), {}, key_of(1));
  other.set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(1.0));
  forward_and_backward(other, weights_, 0, 2);
  forward_and_backward(other, weights_, 5, 2);
  const auto expected = other.release();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], expected[i]));
}

TEST_F(OneRank, charges_steps_that_were_charged_before_as_the_attempts_that_follow) {
  session_.set_attempts(Attempts::from_json(nlohmann::json::parse("[[1,3]]")));
  microbatch();
  (void)session_.release();
  EXPECT_EQ(session_.next().step, 1);
  EXPECT_EQ(session_.next().attempt, 3);
  microbatch();
  (void)session_.release();
  EXPECT_EQ(session_.next().step, 2);
  EXPECT_EQ(session_.next().attempt, 0);
}

TEST_F(OneRank, takes_values_of_more_extents_for_a_matrix_and_of_no_other_size) {
  const auto forward = [&](const at::Tensor& weight) {
    session_.begin_microbatch(2);
    return session_.linear(kMatrix, kBias, false, at::ones({2, 3, kWidth}), weight, weights_[kBias]);
  };
  EXPECT_TRUE(at::equal(forward(weights_[kMatrix].view({kWidth, 2, kWidth / 2})), forward(weights_[kMatrix])));
  EXPECT_THROW(forward(at::zeros({kWidth, kWidth + 1})), std::invalid_argument);
}

TEST_F(OneRank, says_which_layer_lost_track_of_units) {
  session_.begin_microbatch(4);
  try {
    session_.linear(kMatrix, kBias, false, at::zeros({20, kWidth}), weights_[kMatrix], weights_[kBias]);
    FAIL() << "rows that are no longer units' were taken";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("matrix"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("4 units"), std::string::npos) << error.what();
  }
}

// The findings of a watched backward of some units' losses. A mixing model hands each unit its neighbour's rows.
std::pair<int64_t, bool> watched(Session& session, const std::vector<at::Tensor>& w, const std::vector<bool>& chosen,
                                 bool mixes, std::optional<double> bad = std::nullopt) {
  const auto units = static_cast<int64_t>(chosen.size());
  session.begin_microbatch(units);
  at::Tensor x = session.embedding(kTable, ids_of(0, units), w[kTable], -1);
  x = session.linear(kMatrix, kBias, false, x, w[kMatrix], w[kBias]).tanh();
  if (mixes) x = x + x.roll(1, 0);
  if (bad) x = x * at::ones({units, 1, 1}).index_put({at::tensor({0})}, at::scalar_tensor(*bad));
  const at::Tensor losses = session.linear(kHead, -1, true, x, w[kHead], std::nullopt).square().sum({1, 2});
  std::pair<int64_t, bool> found{-1, false};
  for (const bool side : {true, false}) {
    std::vector<bool> side_of(chosen.size());
    at::Tensor weights = at::zeros({units});
    for (size_t u = 0; u < chosen.size(); ++u) {
      side_of[u] = chosen[u] == side;
      weights[static_cast<int64_t>(u)] = side_of[u] ? 1 : 0;
    }
    session.begin_attribution_check(side_of);
    losses.backward(weights, /*retain_graph=*/true);
    const auto [reached, undecided] = session.end_attribution_check();
    found = {std::max(found.first, reached), found.second || undecided};
  }
  losses.sum().backward();
  return found;
}

TEST_F(OneRank, watches_backwards_without_recording_them) {
  EXPECT_EQ(watched(session_, weights_, {true, false, true}, false), std::pair(int64_t{-1}, false));
  session_.clip();
  const auto after = session_.release();
  Session other(fsdp::Mesh::single(), some_blocks(), {}, key_of(1));
  other.set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(1.0));
  other.begin_microbatch(3);
  at::Tensor x = other.embedding(kTable, ids_of(0, 3), weights_[kTable], -1);
  x = other.linear(kMatrix, kBias, false, x, weights_[kMatrix], weights_[kBias]).tanh();
  other.linear(kHead, -1, true, x, weights_[kHead], std::nullopt).square().sum().backward();
  other.clip();
  const auto expected = other.release();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i], expected[i]));
}

TEST_F(OneRank, sees_a_gradient_that_reaches_other_units) {
  EXPECT_EQ(watched(session_, weights_, {true, false}, true).first, kMatrix) << "the last layer before rows are mixed";
  session_.give_up_microbatch();
}

TEST_F(OneRank, says_nothing_of_gradients_that_are_not_numbers) {
  // Zero times the unit's own infinity.
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(watched(session_, weights_, {true, false}, false, infinity), std::pair(int64_t{-1}, true));
  session_.give_up_microbatch();
  EXPECT_NE(watched(session_, weights_, {true, false, true}, true, infinity).first, -1) << "finite ones still say";
}

TEST_F(OneRank, watches_only_before_it_records) {
  EXPECT_THROW(session_.begin_attribution_check({true}), std::exception) << "without a forward";
  (void)watched(session_, weights_, {true, false}, false);
  EXPECT_THROW(session_.begin_attribution_check({true, false}), std::logic_error) << "after the backward";
  EXPECT_THROW(session_.begin_attribution_check({true}), std::exception) << "not one for each unit";
  EXPECT_THROW(session_.end_attribution_check(), std::logic_error);
}

TEST(SessionLedger, is_written_before_anything_leaves_and_refuses_steps_without_noise) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "ledger.jsonl";
  Session session(fsdp::Mesh::single(), some_blocks(), {.plan = {.sampling_rate = accountant::SamplingRate(0.25)}},
                  key_of(1));
  session.attach_ledger(accountant::LedgerWriter::create(path, {{"adjacency", "zero-out"}}));
  const auto weights = some_weights(at::kFloat);
  session.set_terms(accountant::ClipNorm(1.0), std::nullopt);
  EXPECT_THROW(forward_and_backward(session, weights, 0, 2), std::runtime_error);
  session.abandon();
  session.set_terms(accountant::ClipNorm(1.0), accountant::NoiseMultiplier(2.0));
  forward_and_backward(session, weights, 0, 2);
  EXPECT_EQ(accountant::read_ledger(path).entries.size(), 1U) << "with the first microbatch, before the release";
  session.abandon();
  forward_and_backward(session, weights, 0, 2);
  forward_and_backward(session, weights, 4, 1);
  (void)session.release();
  const auto ledger = accountant::read_ledger(path);
  ASSERT_EQ(ledger.entries.size(), 2U) << "the dropped batch stays charged, microbatches are not";
  EXPECT_EQ(ledger.entries[1].step, ledger.entries[0].step);
  EXPECT_GT(ledger.entries[1].attempt, ledger.entries[0].attempt);
  EXPECT_EQ(ledger.entries[1].event, accountant::Event(accountant::PoissonGaussianEvent{
                                         accountant::SamplingRate(0.25), accountant::NoiseMultiplier(2.0)}));
}

}  // namespace
}  // namespace ghostshard::dp
