// The figures of step_compare for steps on a device: their time, and the memory of two sides that take turns.
#include <gtest/gtest.h>

#include <numeric>

#include "bench/step_compare/device_memory.h"
#include "bench/step_compare/sides.h"
#include "tests/support/device_mesh.h"

namespace ghostshard::tests {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor mebibytes(int64_t count) {
  return at::zeros({count * kMiB}, at::TensorOptions(test_device()).dtype(at::kByte));
}

// The first keeps one and frees two; the second comes with three, keeps them, and frees four; then the first once more.
TEST(StepCompareOnDevice, each_side_has_the_peak_that_it_would_have_alone) {
  gpt2::OwnMemory first(test_device()), second(test_device());
  first.begin();
  const at::Tensor of_first = mebibytes(1);
  mebibytes(2);
  first.end();
  EXPECT_EQ(first.peak_mib(), 3);
  second.begin();
  const at::Tensor of_second = mebibytes(3);
  mebibytes(4);
  second.end();
  EXPECT_EQ(second.peak_mib(), 7);
  first.begin();
  mebibytes(5);
  first.end();
  EXPECT_EQ(first.peak_mib(), 6);
  EXPECT_EQ(second.peak_mib(), 7);
}

gpt2::Shape small_shape() {
  gpt2::Shape shape;
  shape.config.n_layer = 1;
  shape.config.n_embd = 16;
  shape.config.n_head = 2;
  shape.config.n_inner = 64;
  shape.config.vocab_size = 31;
  shape.config.n_positions = 8;
  shape.length = 6;
  shape.texts = 2;
  shape.microbatches = 2;
  shape.measured_layer = {
      .units = 2, .rows = 6, .inputs = 8, .outputs = 5};  // minutes on the emulated device otherwise
  return shape;
}

// By the device's clock the phases of a step, one after the other, take no longer than the step by the host's.
void expect_times_of_a_step(const gpt2::Stopwatch& watch, const std::array<bool, gpt2::kPhases>& has) {
  const auto phases = watch.seconds();
  for (size_t p = 0; p < gpt2::kPhases; ++p) EXPECT_EQ(phases[p] > 0, has[p]) << gpt2::kPhaseNames[p];
  constexpr double kClocksDiffer = 1.01;
  EXPECT_LE(std::accumulate(phases.begin(), phases.end(), 0.0), kClocksDiffer * watch.total());
  EXPECT_GT(watch.processor(), 0);
}

TEST(StepCompareOnDevice, every_phase_of_a_private_step_has_its_time) {
  const auto mesh = lone_mesh();
  const gpt2::Shape shape = small_shape();
  gpt2::PrivateSide side(*mesh, shape, gpt2::planned(*mesh, shape));
  expect_times_of_a_step(side.step(gpt2::random_batches(shape, *mesh)), {true, true, true, true, true});
}

TEST(StepCompareOnDevice, a_plain_step_has_no_clipped_sum) {
  const auto mesh = lone_mesh();
  const gpt2::Shape shape = small_shape();
  gpt2::PlainSide side(*mesh, shape, gpt2::planned(*mesh, shape));
  expect_times_of_a_step(side.step(gpt2::random_batches(shape, *mesh)), {true, true, false, true, true});
}

}  // namespace
}  // namespace ghostshard::tests
