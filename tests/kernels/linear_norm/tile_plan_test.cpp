// Which unit a tile belongs to, at sizes for which no machine has the memory; and which way is taken.
#include "kernels/linear_norm/tile_plan.h"

#include <gmock/gmock.h>

#include <numeric>

#include "kernels/device/rounding.h"
#include "kernels/device/tiles.h"
#include "kernels/device/vector.h"
#include "kernels/gaussian.h"
#include "kernels/gaussian/chacha20_block.h"
#include "kernels/norm_parts.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using device::kTile;
using testing::ElementsAre;

TEST(Tiles, OfATriangleComeRowByRow) {
  int64_t index = 0;
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t column = 0; column <= row; ++column, ++index) {
      const device::TileIndex found = device::triangle_index(index);
      ASSERT_EQ(found.row, row) << index;
      ASSERT_EQ(found.column, column) << index;
    }
  }
  EXPECT_EQ(device::triangle_tiles(40 * kTile), index);
}

struct LargeCase {
  const char* name;
  int64_t row;
};

class LargeTriangles : public testing::TestWithParam<LargeCase> {};

TEST_P(LargeTriangles, HaveEveryTileInItsRow) {
  const int64_t row = GetParam().row, first = row * (row + 1) / 2;
  for (const int64_t column : {int64_t{0}, int64_t{1}, row / 2, row - 1, row}) {
    const device::TileIndex found = device::triangle_index(first + column);
    EXPECT_EQ(found.row, row);
    EXPECT_EQ(found.column, column);
  }
  EXPECT_EQ(device::triangle_index(first - 1).row, row - 1);
  EXPECT_EQ(device::triangle_index(first - 1).column, row - 1);
}

INSTANTIATE_TEST_SUITE_P(, LargeTriangles,
                         testing::Values(LargeCase{"Beyond31Bits", 70000}, LargeCase{"Beyond32Bits", 100000},
                                         LargeCase{"Beyond53Bits", 190000000}, LargeCase{"Near62Bits", 3000000000}),
                         [](const auto& test) { return test.param.name; });

TEST(Tiles, BelongToTheirUnitsAndNoneToEmptyOnes) {
  const std::vector<int64_t> first{0, 0, 3, 3, 3, 4, 4};
  const device::UnitTiles tiles{.first = first.data(), .count = 4};
  const auto unit_of = [&](int64_t tile) { return device::unit_of_tile(tiles, 6, tile); };
  EXPECT_THAT((std::vector<int64_t>{unit_of(0), unit_of(2), unit_of(3)}), ElementsAre(1, 1, 4));
}

TEST(Tiles, OfManyUnitsAreCountedIn64Bits) {
  const int64_t longest = int64_t{1} << 31;  // rows
  const Segments segments({0, longest, longest, longest + 1});
  const std::vector<int64_t> before = gram_tiles_before(segments);
  const int64_t side = longest / kTile;
  EXPECT_THAT(before, ElementsAre(0, side * (side + 1) / 2, side * (side + 1) / 2, side * (side + 1) / 2 + 1));
  const device::UnitTiles tiles{.first = before.data(), .count = before.back()};
  EXPECT_EQ(device::unit_of_tile(tiles, 3, before.back() - 1), 2);
  EXPECT_EQ(device::unit_of_tile(tiles, 3, before.back() - 2), 0);
  EXPECT_THAT(pair_tiles_before(segments, Segments({0, 65, 66, 66})), ElementsAre(0, 2 * side, 2 * side, 2 * side));

  const LinearShape shape{.inputs = int64_t{1} << 20, .outputs = (int64_t{1} << 20) + 1};
  const int64_t across = (int64_t{1} << 20) / kTile;
  EXPECT_EQ(gradient_tiles_before(shape, segments).back(), 3 * across * (across + 1));
  const device::TileIndex last = device::rectangle_index(across * (across + 1) - 1, shape.inputs);
  EXPECT_EQ(last.row, across);
  EXPECT_EQ(last.column, across - 1);
}

struct WayCase {
  const char* name;
  LinearShape shape;
  int64_t rows;
  bool by_gradient;
  int64_t gram_step = 1;
};

class PassingWay : public testing::TestWithParam<WayCase> {};

TEST_P(PassingWay, IsTheOneOfFewerSteps) {
  const WayCase& c = GetParam();
  const PassingTiles tiles = passing_tiles_before(c.shape, Segments({0, c.rows}), c.gram_step);
  EXPECT_EQ(tiles.gradient.back() > 0, c.by_gradient);
  EXPECT_EQ(tiles.gram.back() > 0, !c.by_gradient);
}

// The crossover for square layers of width d is near T = d by whole steps: T²·2d/2 against T·d².
INSTANTIATE_TEST_SUITE_P(
    , PassingWay,
    testing::Values(WayCase{"ShortTexts", {768, 3072}, 100, false}, WayCase{"LongTexts", {768, 768}, 1024, true},
                    WayCase{"Vocabulary", {768, 50257}, 512, false}, WayCase{"Adapters", {4096, 16}, 512, true},
                    WayCase{"OneRow", {64, 64}, 1, true}, WayCase{"OneRowOfAWideLayer", {4096, 4096}, 1, false},
                    WayCase{"Medium", {768, 768}, 512, false},
                    WayCase{"MediumInFloat64", {768, 768}, 512, true, kFloat64OverFloat32},
                    WayCase{"VocabularyInFloat64", {768, 50257}, 100, false, kFloat64OverFloat32},
                    WayCase{"VocabularyBesideTensorCores", {768, 50257}, 100, true, kFloat64OverTensorCores}),
    [](const auto& test) { return test.param.name; });

TEST(PassingTiles, MixWaysWithinABatch) {
  const PassingTiles tiles =
      passing_tiles_before({.inputs = 512, .outputs = 512}, oracle::segments_of({32, 0, 1000}), 1);
  EXPECT_THAT(tiles.gram, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(tiles.gradient, ElementsAre(0, 0, 0, 64));
}

struct LinesCase {
  const char* name;
  int64_t shift, stride;  // in float32 elements
  bool by_16_bytes, by_8_bytes;
};

class Lines : public testing::TestWithParam<LinesCase> {};

TEST_P(Lines, AreAlignedIfTheFirstAndTheStrideAre) {
  const LinesCase& c = GetParam();
  alignas(16) const float memory[8] = {};
  EXPECT_EQ(device::lines_are_aligned<16>(memory + c.shift, c.stride), c.by_16_bytes);
  EXPECT_EQ(device::lines_are_aligned<8>(memory + c.shift, c.stride), c.by_8_bytes);
  EXPECT_TRUE(device::lines_are_aligned<4>(memory + c.shift, c.stride));
}

INSTANTIATE_TEST_SUITE_P(, Lines,
                         testing::Values(LinesCase{"Both", 4, 768, true, true},
                                         LinesCase{"OddStride", 0, 50257, false, false},
                                         LinesCase{"StrideOfTwo", 0, 50258, false, true},
                                         LinesCase{"FirstAtTwo", 2, 768, false, true},
                                         LinesCase{"FirstAtOne", 1, 768, false, false}),
                         [](const auto& test) { return test.param.name; });

// The longest chain of roundings: within a chunk, then one for each further chunk.
TEST(SumTerms, GrowWithTheChunkAndThenByOneAChunk) {
  const auto plain = [](int64_t n) { return device::sum_terms(device::ElementType::kFloat32, n); };
  const auto tensor = [](int64_t n) { return device::sum_terms(device::ElementType::kBFloat16, n); };
  EXPECT_THAT((std::vector<int64_t>{plain(0), plain(1), plain(128), plain(129), plain(50257)}),
              ElementsAre(0, 1, 128, 129, 128 + 392));
  EXPECT_THAT((std::vector<int64_t>{tensor(0), tensor(1), tensor(16), tensor(17), tensor(50257)}),
              ElementsAre(0, 36, 36, 72, 288 + 392));
}

TEST(ChaCha20Block, IsTheKeystream) {
  ChaChaKey key;
  std::iota(key.begin(), key.end(), uint8_t{7});
  ChaChaKeyWords words;
  std::memcpy(words.word, key.data(), sizeof words);
  for (const uint64_t block :
       {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 1, uint64_t{1} << 32, ~uint64_t{0} / 8}) {
    std::array<uint64_t, 8> expected{};
    uniform_words(key, 0xdeadbeef, 8 * block, expected);
    uint32_t out[16];
    chacha20_block(words, 0xdeadbeef, block, out);
    EXPECT_EQ(std::memcmp(out, expected.data(), sizeof out), 0) << block;
  }
}

}  // namespace
}  // namespace ghostshard::kernels
