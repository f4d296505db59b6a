#include "kernels/segments.h"

#include <gmock/gmock.h>

#include <stdexcept>

namespace ghostshard::kernels {
namespace {

TEST(Segments, Describe) {
  const Segments segments({0, 3, 3, 8});
  EXPECT_EQ(segments.units(), 3);
  EXPECT_EQ(segments.rows(), 8);
  EXPECT_EQ(segments.begin(2), 3);
  EXPECT_EQ(segments.end(2), 8);
  EXPECT_EQ(segments.length(1), 0);
  EXPECT_EQ(segments.longest(), 5);
  EXPECT_EQ(segments.sum_of_squared_lengths(), 9 + 25);
}

TEST(Segments, AnEmptyBatchHasNoUnitsAndNoRows) {
  const Segments segments({0});
  EXPECT_EQ(segments.units(), 0);
  EXPECT_EQ(segments.rows(), 0);
  EXPECT_EQ(segments.longest(), 0);
}

TEST(Segments, EvenUnitsHaveAllTheSameRows) {
  EXPECT_EQ(Segments::even(3, 2).offsets(), (std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(Segments::even(2).offsets(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(Segments::even(0, 5).offsets(), std::vector<int64_t>{0});
  EXPECT_EQ(Segments::even(2, 0).offsets(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_THROW(Segments::even(-1, 2), std::invalid_argument);
  EXPECT_THROW(Segments::even(2, -1), std::invalid_argument);
}

TEST(Segments, LengthsBeyond31BitsAreExact) {
  const int64_t length = int64_t{1} << 31;
  EXPECT_EQ(Segments({0, length}).sum_of_squared_lengths(), int64_t{1} << 62);
}

struct BadOffsets {
  const char* name;
  std::vector<int64_t> offsets;
  const char* text;
};

class SegmentsRefuse : public testing::TestWithParam<BadOffsets> {};

TEST_P(SegmentsRefuse, AndNameTheFirstOffendingPosition) {
  try {
    const Segments segments(GetParam().offsets);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().text));
  }
}

INSTANTIATE_TEST_SUITE_P(, SegmentsRefuse,
                         testing::Values(BadOffsets{"NoOffsets", {}, "got none"},
                                         BadOffsets{"NotFromZero", {1, 2}, "offsets[0] = 1"},
                                         BadOffsets{"NegativeStart", {-1, 2}, "offsets[0] = -1"},
                                         BadOffsets{"Decreasing", {0, 4, 3, 2}, "offsets[2] = 3 after 4"}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ghostshard::kernels
