// The grid engine, which shares no arithmetic with the contour beyond where it looks, brackets the same truths.
#include "accountant/engines/prv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/grid/grid.h"
#include "accountant/grid/grid_blocks.h"
#include "accountant/grid/grid_side.h"
#include "accountant/grid/grid_window.h"
#include "accountant/grid/pld_cells.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

class PrvOracle : public testing::TestWithParam<OracleTruth> {};

// Opacus' PRV returns truth + 0.01.
TEST_P(PrvOracle, BracketHoldsTheTruthAndIsNarrow) {
  const EpsilonBound found = charged("prv", GetParam())->epsilon(Delta(GetParam().delta));
  const double stated = GetParam().error + 4e-16 * GetParam().epsilon;
  EXPECT_LE(found.lower, GetParam().epsilon + stated);
  EXPECT_GE(found.upper, GetParam().epsilon - stated);
  EXPECT_LE(found.lower, found.estimate);
  EXPECT_LE(found.estimate, found.upper);
  EXPECT_LT(found.upper - found.lower, 1e-4);
}

TEST_P(PrvOracle, QuickAnswersAreBoundsToo) {
  const EpsilonBound found = charged("prv", GetParam())->epsilon(Delta(GetParam().delta), Effort::kQuick);
  const double stated = GetParam().error + 4e-16 * GetParam().epsilon;
  EXPECT_LE(found.lower, GetParam().epsilon + stated);
  EXPECT_GE(found.upper, GetParam().epsilon - stated);
}

INSTANTIATE_TEST_SUITE_P(Rows, PrvOracle, testing::ValuesIn(oracle_truths()),
                         [](const auto& c) { return std::string(c.param.name); });

// One release put on the grid: its hockey-stick divergence, read off the cells, lies on the right side of the closed
// form at every epsilon.
struct OneRelease {
  const char* name;
  Direction direction;
  double q, sigma, h, c;
  double from = -0.5;  // epsilons that are looked at
  double low = -9;     // outcomes that are told apart, in sigmas
};

void PrintTo(const OneRelease& c, std::ostream* out) { *out << c.name; }

class Cells : public testing::TestWithParam<OneRelease> {
 protected:
  static constexpr size_t kPoints = size_t{1} << 16;
  double delta(const TiltedCells& cells, double epsilon) const {
    const GridShape grid = shape();
    double sum = cells.dropped;
    for (size_t k = 0; k < kPoints; ++k) {
      const auto index = static_cast<int64_t>(k) - (k >= kPoints / 2 ? static_cast<int64_t>(kPoints) : 0);
      const double loss = (static_cast<double>(index) + cells.shift) * grid.h;
      if (loss > epsilon) sum += cells.mass[k] * std::exp(-grid.c * loss) * -std::expm1(epsilon - loss);
    }
    return sum;
  }
  GridShape shape() const {
    return {GetParam().h, kPoints, GetParam().c, 0, GetParam().low * GetParam().sigma, 1 + 9 * GetParam().sigma};
  }
};

TEST_P(Cells, LieOnBothSidesOfTheClosedForm) {
  const SampledGaussian release{GetParam().q, GetParam().sigma};
  const TiltedCells above = less_private_cells(GetParam().direction, release, shape());
  const TiltedCells below = more_private_cells(GetParam().direction, release, shape());
  for (double epsilon = GetParam().from; epsilon < GetParam().from + 3.5; epsilon += 0.0371) {
    const Bracket exact = single_release_delta(GetParam().direction, release, epsilon);
    EXPECT_GE(delta(above, epsilon) * (1 + 1e-12), exact.lower) << epsilon;
    EXPECT_LE(delta(below, epsilon) * (1 - 1e-12), exact.upper) << epsilon;
  }
}

INSTANTIATE_TEST_SUITE_P(
    One, Cells,
    testing::Values(OneRelease{"Remove", Direction::kRemove, 0.1, 1, 1e-3, 1},
                    OneRelease{"Add", Direction::kAdd, 0.1, 1, 1e-3, 1},
                    OneRelease{"CoarseMesh", Direction::kRemove, 0.01, 0.8, 0.01, 2},
                    OneRelease{"CoarseMeshAdd", Direction::kAdd, 0.3, 0.8, 0.01, 2},
                    // Too coarse for the boundaries to be put where the cells need them.
                    OneRelease{"MeshAsWideAsTheLosses", Direction::kRemove, 0.3, 0.5, 0.4, 1},
                    OneRelease{"MeshAsWideAsTheLossesAdd", Direction::kAdd, 0.6, 0.5, 0.3, 1},
                    // Low losses hardly weigh: their cells are those that move down a step.
                    OneRelease{"SteepTilt", Direction::kRemove, 0.3, 0.8, 0.2, 25},
                    OneRelease{"SteepTiltFine", Direction::kRemove, 0.3, 0.8, 0.05, 25},
                    OneRelease{"FineMesh", Direction::kRemove, 0.2, 2, 1e-4, 0.5},
                    // Next to the largest loss, -log(1-q), where e^-loss - 1 + q is tiny.
                    OneRelease{"AddNearRateOne", Direction::kAdd, 1 - 0x1p-44, 0.2, 4e-3, 0.5, 28},
                    OneRelease{"AddNearestToRateOne", Direction::kAdd, 1 - 0x1p-52, 0.15, 4e-3, 0.1, 33.5},
                    OneRelease{"RemoveNearRateOne", Direction::kRemove, 1 - 0x1p-44, 0.2, 4e-3, 0.5, -31.5},
                    // Most of the mass has losses below the first cell.
                    OneRelease{"FewLossesToldApart", Direction::kRemove, 0.3, 0.5, 0.3, 1, -0.5, 1.5},
                    OneRelease{"FewLossesToldApartFine", Direction::kRemove, 0.6, 1, 0.01, 1, -0.5, 1},
                    OneRelease{"NoSampling", Direction::kRemove, 1, 2, 1e-3, 0.5}),
    [](const auto& c) { return c.param.name; });

// ---------------------------------------------------------------------------------------------------------------------
// Many steps in blocks: delta from above and from below, on either side of what the line integral says, which shares
// nothing with it. Also where the grids are far too coarse and bounds are loose.

struct InBlocks {
  const char* name;
  Direction direction;
  std::vector<ComposedRelease> phases;
  double epsilon;
  size_t points;
  double apart;  // upper and lower delta, relative
};

void PrintTo(const InBlocks& c, std::ostream* out) { *out << c.name; }

class Blocks : public testing::TestWithParam<InBlocks> {};

TEST_P(Blocks, BracketTheLine) {
  const auto& [name, direction, phases, epsilon, points, apart] = GetParam();
  const auto saddle = saddle_of_epsilon(direction, phases, epsilon);
  ASSERT_TRUE(saddle);
  const auto guess = ContourLine::make(direction, phases, *saddle, epsilon, -12, 0, 100'000'000);
  ASSERT_TRUE(guess);
  const Bracket truth = guess->at(epsilon).bracket;
  const double log_delta = std::log(truth.upper);
  const Sketches sketches(direction, phases, log_delta);
  const double c = sketches.saddle_of(epsilon);
  const auto shape = shape_for(sketches, c, epsilon - 1 / c, epsilon, log_delta, 1e-4, points);
  ASSERT_TRUE(shape);
  const auto plan = plan_blocks(sketches, phases, *shape, log_delta, 1e-9, points);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->coarse.grid.n, points);
  const Side upper(pieces_of_blocks(direction, phases, *plan, true), plan->coarse, true);
  const Side lower(pieces_of_blocks(direction, phases, *plan, false), plan->coarse, false);
  for (const double at : {epsilon - 0.5 / c, epsilon, epsilon + 1 / c}) {
    const Bracket exact = guess->at(at).bracket;
    EXPECT_GE(upper.delta(at), exact.lower) << at;
    EXPECT_LE(lower.delta(at) - alias(lower, plan->coarse.grid.c, at), exact.upper) << at;
  }
  EXPECT_LT(upper.delta(epsilon) / lower.delta(epsilon) - 1, apart);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Blocks,
    testing::Values(InBlocks{"ManySteps", Direction::kRemove, {{{0.01, 1}, 1e6}}, 139, size_t{1} << 19, 1e-4},
                    InBlocks{"ManyStepsAdd", Direction::kAdd, {{{0.01, 1}, 1e6}}, 135, size_t{1} << 19, 1e-3},
                    InBlocks{"ManyStepsCoarse", Direction::kRemove, {{{0.01, 1}, 1e6}}, 139, size_t{1} << 15, 2},
                    InBlocks{"ManyStepsCoarseAdd", Direction::kAdd, {{{0.01, 1}, 1e6}}, 135, size_t{1} << 15, 2},
                    InBlocks{"NotASquare", Direction::kRemove, {{{0.02, 1.2}, 200003}}, 70, size_t{1} << 18, 1e-3},
                    InBlocks{"LittleNoise", Direction::kRemove, {{{0.05, 0.8}, 50000}}, 291, size_t{1} << 19, 1e-3},
                    InBlocks{"TwoPhases",
                             Direction::kRemove,
                             {{{0.01, 1.2}, 500000}, {{0.02, 0.9}, 100003}},
                             110,
                             size_t{1} << 18,
                             1e-3},
                    InBlocks{"NoSampling", Direction::kRemove, {{{1, 100}, 10000}}, 4.4, size_t{1} << 16, 1e-3}),
    [](const auto& c) { return c.param.name; });

// One block's cells by themselves, where its losses are anything but smooth on the coarse mesh.
struct OneBlock {
  const char* name;
  Direction direction;
  double q, sigma, steps, h;
};

void PrintTo(const OneBlock& c, std::ostream* out) { *out << c.name; }

class BlockCells : public testing::TestWithParam<OneBlock> {};

TEST_P(BlockCells, LieOnBothSidesOfTheLine) {
  const auto& [name, direction, q, sigma, steps, h] = GetParam();
  constexpr double kTilt = 1;
  constexpr size_t kPoints = size_t{1} << 14;
  const double low = -9 * sigma;
  const double high = 1 + 9 * sigma;
  BlockPlan plan{};
  plan.coarse.grid = {.h = h, .n = kPoints, .c = kTilt, .log_scale = 0, .low = low, .high = high};
  plan.coarse.phases = {{0, low, high}};
  plan.splits = {{}};
  plan.whole = {false};
  plan.log_scale = {0};
  plan.h = h / 50;
  const double start = -0.25 * plan.h * static_cast<double>(kPoints);
  plan.less_private = {{.counts = {steps}, .times = 1, .start = start, .before = 5, .beyond = 5}};
  plan.more_private = plan.less_private;
  const std::vector<ComposedRelease> block = {{{q, sigma}, steps}};
  const auto delta = [&](const Piece& piece, double epsilon) {
    double sum = piece.cells.dropped;
    const auto n = static_cast<int64_t>(piece.cells.mass.size());
    for (int64_t k = -n / 2; k < n / 2; ++k) {
      const double loss = (static_cast<double>(k) + piece.cells.shift) * h;
      if (loss > epsilon)
        sum += piece.cells.mass[static_cast<size_t>((k + n) % n)] * std::exp(piece.log_scale - kTilt * loss) *
               -std::expm1(epsilon - loss);
    }
    return sum;
  };
  const auto above = pieces_of_blocks(direction, block, plan, true);
  const auto below = pieces_of_blocks(direction, block, plan, false);
  ASSERT_EQ(above.size(), 1);
  ASSERT_EQ(below.size(), 1);
  for (double epsilon = 0.01; epsilon < 1.5; epsilon += 0.0617) {
    const auto saddle = saddle_of_epsilon(direction, block, epsilon);
    ASSERT_TRUE(saddle);
    const auto line = ContourLine::make(direction, block, *saddle, epsilon, -6, 0, 100'000'000);
    if (!line) continue;
    const Bracket exact = line->at(epsilon).bracket;
    EXPECT_GE(delta(above.front(), epsilon) * (1 + 1e-9), exact.lower) << epsilon;
    EXPECT_LE(delta(below.front(), epsilon) * (1 - 1e-9), exact.upper) << epsilon;
  }
}

INSTANTIATE_TEST_SUITE_P(One, BlockCells,
                         testing::Values(OneBlock{"Lumps", Direction::kRemove, 0.02, 0.5, 32, 0.05},
                                         OneBlock{"LumpsCoarse", Direction::kRemove, 0.02, 0.5, 32, 0.3},
                                         OneBlock{"LumpsAdd", Direction::kAdd, 0.05, 0.6, 32, 0.05},
                                         OneBlock{"Smooth", Direction::kRemove, 0.1, 1, 100, 0.05},
                                         OneBlock{"SmoothCoarse", Direction::kRemove, 0.1, 1, 100, 0.4}),
                         [](const auto& c) { return c.param.name; });

// Blocks on fine windows much too short: what lies outside is moved to where it does not belong, and counted.
class ShortBlockWindow : public testing::TestWithParam<double> {};  // its length, in units of what is enough

TEST_P(ShortBlockWindow, HoldsTheLineNevertheless) {
  const std::vector<ComposedRelease> phases = {{{0.02, 3}, 200003}};
  constexpr double kEpsilon = 16;
  for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
    const auto saddle = saddle_of_epsilon(direction, phases, kEpsilon);
    ASSERT_TRUE(saddle);
    const auto line = ContourLine::make(direction, phases, *saddle, kEpsilon, -12, 0, 100'000'000);
    ASSERT_TRUE(line);
    const Sketches sketches(direction, phases, -12);
    const double c = sketches.saddle_of(kEpsilon);
    const auto shape = shape_for(sketches, c, kEpsilon - 1 / c, kEpsilon, -12, 1e-4, size_t{1} << 17);
    ASSERT_TRUE(shape);
    auto plan = plan_blocks(sketches, phases, *shape, -12, 1e-4, size_t{1} << 15);
    ASSERT_TRUE(plan);
    plan->h *= GetParam();
    const auto above = pieces_of_blocks(direction, phases, *plan, true);
    const auto below = pieces_of_blocks(direction, phases, *plan, false);
    ASSERT_FALSE(above.empty());
    ASSERT_FALSE(below.empty());
    const Side upper(above, plan->coarse, true);
    const Side lower(below, plan->coarse, false);
    for (const double at : {kEpsilon - 0.5 / c, kEpsilon, kEpsilon + 1 / c}) {
      const Bracket exact = line->at(at).bracket;
      EXPECT_GE(upper.delta(at), exact.lower) << at;
      EXPECT_LE(lower.delta(at) - alias(lower, plan->coarse.grid.c, at), exact.upper) << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, ShortBlockWindow, testing::Values(0.4, 0.45, 0.5, 0.6, 0.8));

// ---------------------------------------------------------------------------------------------------------------------
// Windows much too short: what wraps around them, and what lies beyond, is larger than delta, and counted

class ShortWindow : public testing::TestWithParam<double> {};  // its length, in units of what is enough

TEST_P(ShortWindow, HoldsTheLineNevertheless) {
  const std::vector<ComposedRelease> phases = {{{0.02, 1.2}, 2000}};
  for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
    const double epsilon = 2.5;
    const auto saddle = saddle_of_epsilon(direction, phases, epsilon);
    ASSERT_TRUE(saddle);
    const auto line = ContourLine::make(direction, phases, *saddle, epsilon, -9, 0, 100'000'000);
    ASSERT_TRUE(line);
    const Sketches sketches(direction, phases, -9);
    const double c = sketches.saddle_of(epsilon);
    auto shape = shape_for(sketches, c, epsilon, epsilon, -9, 1e-4, size_t{1} << 14);
    ASSERT_TRUE(shape);
    shape->grid.h *= GetParam();
    shape->start = static_cast<int64_t>(epsilon / shape->grid.h);
    const Side upper(pieces_of_phases(direction, phases, *shape, true), *shape, true);
    const Side lower(pieces_of_phases(direction, phases, *shape, false), *shape, false);
    for (const double share : {0.05, 0.2, 0.4, 0.7, 0.9}) {
      const double at = epsilon + share * upper.period();
      const Bracket exact = line->at(at).bracket;
      EXPECT_GE(upper.delta(at), exact.lower) << at;
      EXPECT_LE(lower.delta(at) - alias(lower, shape->grid.c, at), exact.upper) << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Periods, ShortWindow, testing::Values(0.02, 0.05, 0.1, 0.2, 0.4));

// delta lies 27 powers of e below what the transform's rounding is relative to: the bracket must say so.
TEST(Grid, CountsTheTransformsRounding) {
  const auto found =
      grid_epsilon(Direction::kRemove, {{{2.193e-5, 1.349}, 307}}, Delta(3.48e-25), {.size = GridSize::kSmall});
  ASSERT_TRUE(found.has_value());
  EXPECT_GT(found->upper - found->lower, 0.01);
}

// Gaussians of which none is sampled: the closed form of one, whatever the noise.
class PlainGaussians : public testing::TestWithParam<double> {};

TEST_P(PlainGaussians, AreBracketedToRounding) {
  for (const auto& [steps, delta] : {std::pair<int64_t, double>{1, 1e-6}, {4, 1e-6}, {100000, 1e-30}}) {
    const OracleTruth run{"", {{1, GetParam(), steps}}, delta, 0, 0};
    const EpsilonBound found = charged("prv", run)->epsilon(Delta(delta));
    const Bracket truth = single_release_epsilon(Direction::kRemove,
                                                 {1, GetParam() / std::sqrt(static_cast<double>(steps))}, Delta(delta));
    EXPECT_LE(found.lower, truth.upper * (1 + 1e-14)) << steps;
    EXPECT_GE(found.upper, truth.lower * (1 - 1e-14)) << steps;
    // Exponents of the size of epsilon are rounded, and delta falls by them over sqrt(2 epsilon) standard deviations.
    EXPECT_LE(found.upper - found.lower, (1e-11 + 2e-14 * std::sqrt(found.upper)) * (1 + found.upper)) << steps;
    const DeltaBound at = charged("prv", run)->delta(Epsilon(found.estimate));
    EXPECT_LE(at.lower, delta * (1 + 1e-6)) << steps;
    EXPECT_GE(at.upper, delta * (1 - 1e-6)) << steps;
  }
}

INSTANTIATE_TEST_SUITE_P(Noise, PlainGaussians, testing::Values(20.0, 1.0, 0.5, 0.3, 0.1, 1e-2, 1e-4));

}  // namespace
}  // namespace ghostshard::accountant
