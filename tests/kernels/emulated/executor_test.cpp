// The emulation finds the faults it is made to find: each kernel here has one fault, or none.
#include "tests/emulation/cuda/executor.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "kernels/device/elements.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared.cuh"

namespace ghostshard::kernels::device {
namespace {

using emulation::Fault;

constexpr int kThreads = 64;

struct Row {
  int value[kThreads];
};

// Every thread passes a number to its neighbour.
template <bool kBarrier>
void pass_on(int* out) {
  auto& shared = block_shared<Row>();
  const auto t = static_cast<int>(threadIdx.x);
  shared.value[t] = t + 1;
  if constexpr (kBarrier) __syncthreads();
  out[t] = shared.value[(t + 1) % kThreads];
}

// The same twice in the same memory.
template <bool kBarrier>
void pass_on_twice(int* out) {
  auto& shared = block_shared<Row>();
  const auto t = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 2; ++round) {
    shared.value[t] = t + 100 * round;
    __syncthreads();
    out[t] += shared.value[(t + 1) % kThreads];
    if constexpr (kBarrier) __syncthreads();
  }
}

// Warps pass a number to the first thread, twice; it reads the first number while others may already write the second.
template <bool kBarrier>
void warps_report_twice(int* out) {
  auto& shared = block_shared<Row>();
  const int t = static_cast<int>(threadIdx.x), warp = t / kWarp;
  for (int round = 0; round < 2; ++round) {
    const int sum = __shfl_xor_sync(kWholeWarp, round, 1);
    if constexpr (kBarrier) __syncthreads();
    if (t % kWarp == 0) shared.value[warp] = sum;
    __syncthreads();
    if (t == 0) out[round] = shared.value[0] + shared.value[1];
  }
}

void last_block_wins(int* out) { *out = static_cast<int>(blockIdx.x); }

void half_of_a_block_waits(int*) {
  if (threadIdx.x < kThreads / 2) __syncthreads();
}

void half_of_a_warp_shuffles(int* out) {
  if (threadIdx.x % 2 == 0) *out = __shfl_xor_sync(kWholeWarp, 1, 1);
}

void lanes_disagree(int* out) {
  if (threadIdx.x % 2 == 0) {
    *out = __shfl_xor_sync(kWholeWarp, 1, 1);
  } else {
    __syncwarp();
  }
}

void uses_more_shared_memory_than_it_has(int* out) { *out = block_shared<std::array<Row, 2>>()[1].value[0]; }

void reads_what_nobody_wrote(float* out) { *out = block_shared<std::array<float, 4>>()[3]; }

std::vector<int> run_once(void (*kernel)(int*), uint64_t schedule, int64_t blocks = 1) {
  std::vector<int> out(kThreads, -1);
  emulation::set_schedule(schedule);
  launch("kernel", kernel, {.work = blocks, .threads = kThreads, .shared_bytes = sizeof(Row)}, nullptr, out.data());
  return out;
}

size_t different_results(void (*kernel)(int*), int64_t blocks = 1) {
  std::set<std::vector<int>> seen;
  for (uint64_t schedule = 0; schedule < 20; ++schedule) seen.insert(run_once(kernel, schedule, blocks));
  return seen.size();
}

struct ScheduleCase {
  const char* name;
  void (*kernel)(int*);
  int64_t blocks;
  bool depends_on_schedule;
};

class Schedules : public testing::TestWithParam<ScheduleCase> {};

TEST_P(Schedules, ChangeTheResultWhereABarrierLacks) {
  const ScheduleCase& c = GetParam();
  EXPECT_EQ(different_results(c.kernel, c.blocks) > 1, c.depends_on_schedule);
}

INSTANTIATE_TEST_SUITE_P(, Schedules,
                         testing::Values(ScheduleCase{"Synchronised", pass_on<true>, 3, false},
                                         ScheduleCase{"WrittenAndRead", pass_on<false>, 1, true},
                                         ScheduleCase{"SynchronisedTwice", pass_on_twice<true>, 3, false},
                                         ScheduleCase{"ReadAndWrittenAgain", pass_on_twice<false>, 1, true},
                                         ScheduleCase{"ReportsApart", warps_report_twice<true>, 1, false},
                                         ScheduleCase{"OneWarpRunsAhead", warps_report_twice<false>, 1, true},
                                         ScheduleCase{"BlocksThatRace", last_block_wins, 4, true}),
                         [](const auto& test) { return test.param.name; });

struct FaultCase {
  const char* name;
  void (*kernel)(int*);
};

class Faults : public testing::TestWithParam<FaultCase> {};

TEST_P(Faults, AreThrownAndTheNextLaunchWorks) {
  EXPECT_THROW(run_once(GetParam().kernel, 0), Fault);
  EXPECT_EQ(run_once(pass_on<true>, 0)[3], 5);
}

INSTANTIATE_TEST_SUITE_P(, Faults,
                         testing::Values(FaultCase{"HalfOfABlockAtABarrier", half_of_a_block_waits},
                                         FaultCase{"HalfOfAWarpAtAShuffle", half_of_a_warp_shuffles},
                                         FaultCase{"LanesAtDifferentOperations", lanes_disagree},
                                         FaultCase{"SharedMemoryNotAskedFor", uses_more_shared_memory_than_it_has}),
                         [](const auto& test) { return test.param.name; });

TEST(SharedMemory, IsNotANumberBeforeItIsWritten) {
  float out = 0;
  launch("kernel", reads_what_nobody_wrote, {.work = 1, .threads = 1, .shared_bytes = 16}, nullptr, &out);
  EXPECT_TRUE(std::isnan(out));
}

TEST(Launch, RefusesWhatADeviceWould) {
  EXPECT_THROW(launch("kernel", last_block_wins, {.work = 1, .threads = 2000}, nullptr, nullptr), std::runtime_error);
  EXPECT_THROW(launch("kernel", last_block_wins, {.work = 1, .threads = 32, .shared_bytes = 1 << 20}, nullptr, nullptr),
               std::runtime_error);
  EXPECT_NO_THROW(launch("kernel", last_block_wins, {.work = 0, .threads = 32}, nullptr, nullptr)) << "nothing to do";
}

void sum_of_threads(double* out) {
  auto& scratch = block_shared<BlockSum<kThreads>>();
  for (int i = 0; i < 2; ++i) {
    const double sum = block_sum(scratch, static_cast<double>(threadIdx.x) * (i + 1));
    if (threadIdx.x == 0) out[i] = sum;
  }
}

TEST(BlockSums, AreOfAllThreadsAndMayFollowEachOther) {
  for (uint64_t schedule = 0; schedule < 10; ++schedule) {
    double out[2] = {};
    emulation::set_schedule(schedule);
    launch("sum", sum_of_threads, {.work = 1, .threads = kThreads, .shared_bytes = sizeof(BlockSum<kThreads>)}, nullptr,
           out);
    EXPECT_EQ(out[0], kThreads * (kThreads - 1) / 2);
    EXPECT_EQ(out[1], kThreads * (kThreads - 1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The instruction, from matrices laid out as the PTX ISA's figures show them: the element that each lane's register
// holds is written down here once more, entry by entry.

struct Matrices {
  float x[16][16], y[16][8], c[16][8];
};

uint16_t bfloat16_of(float value) { return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16); }

void multiply(const Matrices* in, float* out) {
  const int lane = static_cast<int>(threadIdx.x), group = lane >> 2, in_group = lane % 4;
  uint32_t x[4] = {}, y[2] = {};
  float c[4];
  for (int i = 0; i < 8; ++i) {  // "ai where i = {0,…,7}"
    const int row = (i < 2) || (i >= 4 && i < 6) ? group : group + 8;
    const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
    x[i / 2] |= static_cast<uint32_t>(bfloat16_of(in->x[row][column])) << (16 * (i & 1));
  }
  for (int i = 0; i < 4; ++i) {  // "bi where i = {0,…,3}"
    const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
    y[i / 2] |= static_cast<uint32_t>(bfloat16_of(in->y[row][group])) << (16 * (i & 1));
  }
  for (int i = 0; i < 4; ++i) c[i] = in->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
  multiply_add_16x8x16(BFloat16{}, c, x, y);
  for (int i = 0; i < 4; ++i) out[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = c[i];
}

TEST(TensorCore, IsTheProductOfTheMatricesInTheirFragments) {
  Matrices in{};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) in.x[i][j] = static_cast<float>(i * 3 - j);  // whole numbers: every sum is exact
    for (int j = 0; j < 8; ++j)
      in.y[i][j] = static_cast<float>((i * j) % 7 - 2), in.c[i][j] = static_cast<float>(i + j);
  }
  std::vector<float> out(16 * 8);
  launch("multiply", multiply, {.work = 1, .threads = 32}, nullptr, &in, out.data());
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float expected = in.c[i][j];
      for (int k = 0; k < 16; ++k) expected += in.x[i][k] * in.y[k][j];
      EXPECT_EQ(out[static_cast<size_t>(i * 8 + j)], expected) << i << ", " << j;
    }
  }
}

TEST(TensorCore, CutsSmallTermsOffBesideALargeOne) {
  Matrices in{};
  for (int k = 0; k < 16; ++k) in.x[0][k] = 1, in.y[k][0] = 0x1p-24f;
  in.c[0][0] = 1;
  std::vector<float> out(16 * 8);
  launch("multiply", multiply, {.work = 1, .threads = 32}, nullptr, &in, out.data());
  EXPECT_EQ(out[0], 1.0f) << "each is below the last of 24 bits";
}

TEST(Formats, AllFiniteHalvesAndBFloatsAreExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    const double sign = (half >> 15) != 0 ? -1 : 1;
    const float value = to_float(Float16{half});
    if (exponent == 31) {
      EXPECT_TRUE(fraction == 0 ? std::isinf(value) : std::isnan(value)) << bits;
      continue;
    }
    const double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(value, sign * expected) << bits;
    ASSERT_EQ(std::signbit(value), sign < 0) << bits;
  }
  EXPECT_EQ(to_float(BFloat16{0x3fc0}), 1.5f);
}

}  // namespace
}  // namespace ghostshard::kernels::device
