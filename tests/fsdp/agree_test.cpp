#include "fsdp/agree.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/ranks.h"

namespace ghostshard::tests {
namespace {

TEST(Agree, LetsEveryRankGoOnIfAllAreFine) {
  std::atomic<int> went_on{0};
  run_ranks(3, [&](fsdp::Mesh& mesh) {
    fsdp::agree(mesh, [] {});
    ++went_on;
  });
  EXPECT_EQ(went_on, 3);
}

TEST(Agree, GivesEveryRankTheFirstFailuresMessageAndKind) {
  std::atomic<int> failed{0};
  run_ranks(3, [&](fsdp::Mesh& mesh) {
    try {
      fsdp::agree(mesh, [&] {
        if (mesh.rank() == 1) throw std::invalid_argument("the file must exist");
      });
      ADD_FAILURE() << "rank " << mesh.rank() << " went on";
    } catch (const fsdp::AgreedFailure& failure) {
      EXPECT_TRUE(failure.callers_mistake());
      EXPECT_EQ(std::string(failure.what()), mesh.rank() == 1 ? "the file must exist" : "rank 1: the file must exist");
      ++failed;
    }
  });
  EXPECT_EQ(failed, 3);
}

TEST(Agree, KeepsAFailureApartFromAMistakeAndCutsLongMessages) {
  run_ranks(2, [&](fsdp::Mesh& mesh) {
    try {
      fsdp::agree(mesh, [&] {
        if (mesh.rank() == 0) throw std::runtime_error(std::string(5000, 'x'));
      });
      ADD_FAILURE() << "rank " << mesh.rank() << " went on";
    } catch (const fsdp::AgreedFailure& failure) {
      EXPECT_FALSE(failure.callers_mistake());
      EXPECT_GE(std::string(failure.what()).size(), 1000U);
    }
  });
}

TEST(BroadcastText, GivesEveryRankTheTextOfRank0) {
  const std::vector<std::string> texts{"", "1234567", "12345678", std::string(9999, 'x')};
  for (const std::string& text : texts) {
    run_ranks(3, [&](fsdp::Mesh& mesh) {
      EXPECT_EQ(fsdp::broadcast_text(mesh, mesh.rank() == 0 ? text : "another's"), text);
    });
  }
}

}  // namespace
}  // namespace ghostshard::tests
