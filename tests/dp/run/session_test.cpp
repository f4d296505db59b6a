// A session on every mesh: the sums of a loop over units, the noise of one rank.
#include "dp/run/session.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/dp/run/session_world.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"

namespace ghostshard::dp {
namespace {

using tests::key_of;
using tests::run_mesh;

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

}  // namespace
}  // namespace ghostshard::dp
