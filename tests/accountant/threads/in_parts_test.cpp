#include "accountant/threads/in_parts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace ghostshard::accountant {
namespace {

constexpr double kLong = 1e9;  // nanoseconds of a piece: worth threads

struct Case {
  const char* name;
  size_t n, granule;
  double nanoseconds;
};
class InParts : public testing::TestWithParam<Case> {};

TEST_P(InParts, TakesEachPieceOnceAndCutsAtMultiples) {
  const Case& c = GetParam();
  std::vector<std::atomic<int>> taken(c.n);
  std::mutex noting;
  size_t parts = 0;
  in_parts(c.n, c.granule, c.nanoseconds, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) ++taken[i];
    const std::lock_guard<std::mutex> guard(noting);
    ++parts;
    EXPECT_EQ(first % c.granule, 0U);
    EXPECT_LE(end, c.n);
  });
  for (size_t i = 0; i < c.n; ++i) EXPECT_EQ(taken[i], 1) << i;
  EXPECT_LE(parts, 17U);
  EXPECT_EQ(parts > 1, c.nanoseconds == kLong && c.n >= 2 * c.granule);
}
INSTANTIATE_TEST_SUITE_P(, InParts,
                         testing::Values(Case{"none", 0, 1, kLong}, Case{"one", 1, 1, kLong}, Case{"two", 2, 1, kLong},
                                         Case{"fewer_than_parts", 15, 1, kLong}, Case{"as_many", 16, 1, kLong},
                                         Case{"uneven", 1000, 7, kLong}, Case{"a_granule_and_a_half", 150, 100, kLong},
                                         Case{"many", 5000, 512, kLong}, Case{"hardly_any_work", 5000, 1, 1.0}),
                         [](const auto& info) { return info.param.name; });

TEST(InPartsThrows, TheFirstExceptionAfterAllHaveEnded) {
  std::atomic<int> under_way = 0;
  const auto part = [&](size_t first, size_t) {
    ++under_way;
    if (first == 0) {
      --under_way;
      throw std::runtime_error("the first part");
    }
    --under_way;
  };
  EXPECT_THROW(in_parts(64, 1, kLong, part), std::runtime_error);
  EXPECT_EQ(under_way, 0);
}

}  // namespace
}  // namespace ghostshard::accountant
