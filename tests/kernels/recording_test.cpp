#include "kernels/recording.h"

#include <gtest/gtest.h>

#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

struct ChoiceCase {
  const char* name;
  int64_t units, rows;
  LinearShape shape;
  int64_t memory_left_bytes;
  Recording expected;
};

constexpr int64_t kMuch = int64_t{1} << 40;
const MachineRates kRates = usual_rates(at::kCPU, at::kFloat);

class ChooseRecording : public testing::TestWithParam<ChoiceCase> {};

TEST_P(ChooseRecording, TakesTheFasterWayThatFits) {
  const ChoiceCase& c = GetParam();
  const Segments segments = oracle::segments_of(std::vector<int64_t>(static_cast<size_t>(c.units), c.rows));
  EXPECT_EQ(choose_recording(c.shape, segments, c.memory_left_bytes, kRates), c.expected);
}

INSTANTIATE_TEST_SUITE_P(
    , ChooseRecording,
    testing::Values(ChoiceCase{"LongUnitsAreHeld", 4, 512, {768, 768}, kMuch, Recording::kHold},
                    ChoiceCase{"LongUnitsOfAWideLayerAreHeld", 4, 512, {768, 3072}, kMuch, Recording::kHold},
                    ChoiceCase{"ShortUnitsReplay", 64, 16, {768, 768}, kMuch, Recording::kReplay},
                    ChoiceCase{"SmallMatricesAreHeld", 16, 100, {256, 256}, kMuch, Recording::kHold},
                    ChoiceCase{"OneRowUnitsReplay", 100, 1, {64, 4096}, kMuch, Recording::kReplay},
                    ChoiceCase{"ExactlyEnoughMemory", 4, 512, {768, 768}, 4 * 4 * 768 * 768, Recording::kHold},
                    ChoiceCase{"OneByteTooLittle", 4, 512, {768, 768}, 4 * 4 * 768 * 768 - 1, Recording::kReplay},
                    ChoiceCase{"NoMemory", 4, 512, {768, 768}, 0, Recording::kReplay},
                    ChoiceCase{"BeyondInt32", 3, 1000, {1 << 20, 1 << 12}, kMuch, Recording::kHold},
                    ChoiceCase{"EmptyBatch", 0, 0, {768, 768}, kMuch, Recording::kReplay}),
    [](const auto& test) { return test.param.name; });

TEST(RecordingCost, CountsWhatIsKept) {
  const Segments segments = oracle::segments_of({3, 5});
  EXPECT_EQ(recording_cost(Recording::kHold, {.inputs = 7, .outputs = 11}, segments, kRates).bytes_kept,
            2 * 7 * 11 * 4);
  EXPECT_EQ(recording_cost(Recording::kReplay, {.inputs = 7, .outputs = 11}, segments, kRates).bytes_kept, 8 * 11 * 4);
  EXPECT_EQ(recording_cost(Recording::kReplay, {.inputs = 7, .outputs = 11}, segments, kRates).flops,
            (9 + 25) * (7 + 11) + 2 * 8 * 7 * 11);
  const auto twice = recording_cost(Recording::kTwoPass, {.inputs = 7, .outputs = 11}, segments, kRates);
  EXPECT_EQ(twice.bytes_kept, 0);
  EXPECT_GE(twice.flops, 3 * 2 * 8 * 7 * 11) << "forward, both gradients";
}

TEST(RecordingCost, TwoPassesCostMoreThanEither) {
  for (const int64_t rows : {10, 100, 1000}) {
    const Segments segments = oracle::segments_of({rows, rows});
    const LinearShape shape{.inputs = 512, .outputs = 768};
    const double twice = recording_cost(Recording::kTwoPass, shape, segments, kRates).seconds;
    const double hold = recording_cost(Recording::kHold, shape, segments, kRates).seconds;
    const double replay = recording_cost(Recording::kReplay, shape, segments, kRates).seconds;
    EXPECT_GT(twice, std::min(hold, replay)) << rows;
  }
}

TEST(RecordingCost, ARecomputedHeadPaysForTheSoftmaxOfItsLogitsTwice) {
  const Segments segments = oracle::segments_of({100, 100});
  for (const int64_t outputs : {1000, 50257}) {
    const LinearShape shape{.inputs = 256, .outputs = outputs};
    const auto recompute = recording_cost(Recording::kRecompute, shape, segments, kRates);
    const auto twice = recording_cost(Recording::kTwoPass, shape, segments, kRates);
    EXPECT_EQ(recompute.flops, twice.flops) << "products alone";
    const double reading = 200 * static_cast<double>(outputs) * kRates.seconds_per_row_element;
    EXPECT_GT(recompute.seconds - twice.seconds, 2 * reading) << "an exponential takes longer than reading";
  }
}

}  // namespace
}  // namespace ghostshard::kernels
