#include "dp/run/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "fsdp/saved_object.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using tests::key_of;
using tests::run_mesh;

// A model of each kind of layer that the session has, with weights of its own: table, norm, two uses of one matrix, a
// head stored the other way round, a scale that somebody else instantiates.
constexpr int64_t kVocabulary = 11, kWidth = 6, kLength = 5, kClasses = 3;
enum Id : int64_t { kTable, kScale, kShift, kMatrix, kBias, kHead, kGain, kCount };

std::vector<fsdp::BlockSpec> some_blocks() {
  return {{"body",
           {{"table", {kVocabulary, kWidth}},
            {"scale", {kWidth}},
            {"shift", {kWidth}},
            {"matrix", {kWidth, kWidth}},
            {"bias", {kWidth}}}},
          {"head", {{"head", {kWidth, kClasses}}, {"gain", {kWidth}}}}};
}

std::vector<at::Tensor> some_weights(at::ScalarType dtype) {
  std::vector<at::Tensor> weights;
  for (const auto& block : some_blocks()) {
    for (const auto& parameter : block.parameters) {
      const at::Tensor index = at::arange(c10::multiply_integers(parameter.shape), at::kDouble);
      weights.push_back(
          (index * 0.7 + static_cast<double>(weights.size())).sin().mul(0.8).view(parameter.shape).to(dtype));
    }
  }
  return weights;
}

// One row for each of `units` units, from `first` on.
at::Tensor ids_of(int64_t first, int64_t units) {
  const at::Tensor unit = at::arange(first, first + units, at::kLong).unsqueeze(1);
  return (unit * 3 + at::arange(kLength, at::kLong) * 7).remainder(kVocabulary);
}

// By plain autograd, one unit at a time in float64: the sum of clipped gradients.
std::vector<at::Tensor> clipped_sum_of_oracle(const std::vector<int64_t>& units, double clip_norm) {
  std::vector<at::Tensor> sum;
  for (const at::Tensor& w : some_weights(at::kDouble)) sum.push_back(at::zeros_like(w));
  for (const int64_t unit : units) {
    auto w = some_weights(at::kDouble);
    for (at::Tensor& each : w) each.set_requires_grad(true);
    at::Tensor x = at::embedding(w[kTable], ids_of(unit, 1));
    x = at::layer_norm(x, {kWidth}, w[kScale], w[kShift], 1e-5);
    x = at::linear(x, w[kMatrix], w[kBias]).tanh();
    x = at::linear(x, w[kMatrix], w[kBias]).tanh() * w[kGain];
    at::matmul(x, w[kHead]).square().sum().backward();
    double squared = 0;
    for (const at::Tensor& each : w) squared += each.grad().square().sum().item<double>();
    const double factor = std::min(1.0, clip_norm / std::sqrt(squared));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * w[i].grad();
  }
  return sum;
}

// The gain, as another language would record it: a node whose backward instantiates its gradients.
struct GainFunction : torch::autograd::Function<GainFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gain,
                            Session* session) {
    ctx->save_for_backward({x, gain});
    fsdp::save_object(ctx, fsdp::borrowed(*session));
    session->count_use(kGain);
    return x * gain;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto session = fsdp::saved_object<Session>(ctx);
    session->instantiated(session->tape(), kGain, (saved[0] * grads[0]).sum(1));
    return {grads[0] * saved[1], {}, {}};
  }
};

void forward_and_backward(Session& session, const std::vector<at::Tensor>& w, int64_t first, int64_t units) {
  session.begin_microbatch(units);
  at::Tensor x = session.embedding(kTable, ids_of(first, units), w[kTable], -1);
  x = session.layer_norm(kScale, kShift, x, 1e-5, w[kScale], w[kShift]);
  x = session.linear(kMatrix, kBias, false, x, w[kMatrix], w[kBias]).tanh();
  x = session.linear(kMatrix, kBias, false, x, w[kMatrix], w[kBias]).tanh();
  x = GainFunction::apply(x, w[kGain], &session);
  const at::Tensor loss = session.linear(kHead, -1, true, x, w[kHead], std::nullopt).square().sum();
  loss.backward({}, /*retain_graph=*/session.takes_two_passes());
  if (session.second_pass()) loss.backward();
  session.clip();
}

// The rows that all ranks own, put together: each parameter's in the order of shard ranks, of replica 0.
class Collected {
 public:
  void add(const fsdp::Mesh& mesh, const std::vector<at::Tensor>& owned) {
    const std::lock_guard lock(mutex_);
    if (mesh.replica() == 0 && mesh.model_rank() == 0) rows_[mesh.shard_rank()] = owned;
  }
  std::vector<at::Tensor> whole() const {
    std::vector<at::Tensor> all;
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<at::Tensor> pieces;
      for (const auto& [rank, owned] : rows_) pieces.push_back(owned[i]);
      all.push_back(at::cat(pieces));
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::vector<at::Tensor>> rows_;
};

struct SessionCase {
  const char* mesh;
  bool streamed;
  std::optional<int64_t> memory_budget_bytes = {};
};

class Sessions : public testing::TestWithParam<SessionCase> {};
INSTANTIATE_TEST_SUITE_P(, Sessions,
                         testing::Values(SessionCase{"1x1x1", true}, SessionCase{"1x1x1", false},
                                         SessionCase{"1x2x1", true}, SessionCase{"1x2x1", false},
                                         SessionCase{"1x4x1", true}, SessionCase{"2x1x1", true},
                                         SessionCase{"2x2x1", true}, SessionCase{"2x2x1", false},
                                         SessionCase{"1x1x1", true, 0}, SessionCase{"1x1x1", false, 0},
                                         SessionCase{"1x4x1", true, 0}, SessionCase{"2x2x1", true, 0},
                                         SessionCase{"2x2x1", false, 0}),
                         [](const auto& test) {
                           return std::string("mesh_") + test.param.mesh +
                                  (test.param.streamed ? "_streamed" : "_together") +
                                  (test.param.memory_budget_bytes ? "_two_pass" : "");
                         });

constexpr double kClipNorm = 1.5;

// Two microbatches on each rank, of unequal size: rank r has r + 1 units in the first and none or one in the second.
std::vector<at::Tensor> released(const SessionCase& how, double noise_multiplier) {
  Collected all;
  run_mesh(fsdp::MeshShape::parse(how.mesh), [&](fsdp::Mesh& mesh) {
    Session session(fsdp::borrowed(mesh), some_blocks(),
                    {.streamed = how.streamed, .memory_budget_bytes = how.memory_budget_bytes}, key_of(7));
    session.set_terms(
        accountant::ClipNorm(kClipNorm),
        noise_multiplier > 0 ? std::optional(accountant::NoiseMultiplier(noise_multiplier)) : std::nullopt);
    const auto weights = some_weights(at::kFloat);
    forward_and_backward(session, weights, 10 * mesh.rank(), mesh.rank() + 1);
    forward_and_backward(session, weights, 100 + mesh.rank(), mesh.rank() % 2);
    all.add(mesh, session.release());
  });
  return all.whole();
}

TEST_P(Sessions, release_what_a_loop_over_units_gives) {
  std::vector<int64_t> units;
  for (int64_t rank = 0; rank < fsdp::MeshShape::parse(GetParam().mesh).ranks(); ++rank) {
    for (int64_t u = 0; u <= rank; ++u) units.push_back(10 * rank + u);
    if (rank % 2 == 1) units.push_back(100 + rank);
  }
  const auto expected = clipped_sum_of_oracle(units, kClipNorm);
  const auto found = released(GetParam(), 0);
  double scale = 0;
  for (const at::Tensor& each : expected) scale = std::max(scale, each.abs().max().item<double>());
  for (size_t i = 0; i < expected.size(); ++i) {
    // A few dozen float32 operations between an input and a sum, each within 2^-24 of its terms.
    EXPECT_LT((found[i].to(at::kDouble) - expected[i]).abs().max().item<double>(), 2e-5 * scale) << "parameter " << i;
  }
}

TEST_P(Sessions, draw_the_same_noise_on_every_mesh) {
  // Against one rank's: without the sums only the noise is left, up to rounding.
  const double sigma = 3.0;
  const auto noise = [&](const SessionCase& how) {
    auto with = released(how, sigma);
    const auto without = released(how, 0);
    for (size_t i = 0; i < with.size(); ++i) with[i] -= without[i];
    return with;
  };
  const auto here = noise(GetParam()), alone = noise({"1x1x1", false});
  double squares = 0;
  int64_t elements = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_LT((here[i] - alone[i]).abs().max().item<double>(), 1e-4) << "parameter " << i;
    squares += here[i].to(at::kDouble).square().sum().item<double>();
    elements += here[i].numel();
  }
  // Chi-square with 165 degrees of freedom: within 0.5 and 1.6 of its mean but for 1e-7.
  const double ratio = squares / (static_cast<double>(elements) * sigma * sigma * kClipNorm * kClipNorm);
  EXPECT_GT(ratio, 0.5);
  EXPECT_LT(ratio, 1.6);
}

TEST(Session, plans_two_passes_where_a_step_recorded_more_than_its_budget) {
  run_mesh(fsdp::MeshShape::parse("1x2x1"), [&](fsdp::Mesh& mesh) {
    const auto weights = some_weights(at::kFloat);
    const auto steps = [&](std::optional<int64_t> budget) {
      Session session(fsdp::borrowed(mesh), some_blocks(), {.memory_budget_bytes = budget}, key_of(7));
      session.set_terms(accountant::ClipNorm(kClipNorm), std::nullopt);
      std::vector<std::vector<at::Tensor>> released;
      std::vector<bool> two_passes;
      for (int step = 0; step < 2; ++step) {
        two_passes.push_back(session.takes_two_passes());
        // Rank 1's microbatches alone are over the budget: both must hear of it.
        forward_and_backward(session, weights, 10 * mesh.rank(), mesh.rank() == 0 ? 1 : 40);
        released.push_back(session.release());
      }
      return std::pair(released, two_passes);
    };
    const auto [unbounded, never] = steps(std::nullopt);
    EXPECT_EQ(never, std::vector<bool>({false, false}));
    EXPECT_EQ(steps(int64_t{1} << 20).second, std::vector<bool>({false, false})) << "room enough";
    const auto [bounded, then] = steps(4096);
    EXPECT_EQ(then, std::vector<bool>({false, true}));
    for (size_t step = 0; step < 2; ++step) {
      for (size_t i = 0; i < kCount; ++i) {
        // The same sums in the order of other kernels; see release_what_a_loop_over_units_gives.
        EXPECT_TRUE(at::allclose(bounded[step][i], unbounded[step][i], 1e-4, 1e-4)) << "parameter " << i;
      }
    }
  });
}

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
