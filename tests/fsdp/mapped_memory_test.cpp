#include "fsdp/mapped_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "fsdp/mapped_memory/places.h"

namespace ghostshard::fsdp {
namespace {

constexpr int64_t kLarge = int64_t{16} << 20;  // elements of float32: 64 MiB

int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

at::Tensor large(double value) { return mapped_empty({kLarge}, at::kFloat).fill_(value); }

TEST(Places, are_taken_lowest_first_and_joined_again) {
  Places places(10);
  EXPECT_EQ(places.take(4), 0);
  EXPECT_EQ(places.take(3), 4);
  EXPECT_EQ(places.take(4), -1) << "3 are left";
  places.give_back(0, 4);
  EXPECT_EQ(places.take(5), -1) << "4 and 3 are apart";
  EXPECT_EQ(places.take(3), 0);
  places.give_back(4, 3);
  places.give_back(0, 3);
  EXPECT_EQ(places.free(), (std::map<int64_t, int64_t>{{0, 10}}));
}

// Against a table of the places that are in use.
TEST(Places, agree_with_a_table_of_owners) {
  constexpr int64_t kCapacity = 64;
  std::mt19937 random(1);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  Places places(kCapacity);
  std::vector<bool> used(kCapacity);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int round = 0; round < 2000; ++round) {
    if (below(2) == 0 && !taken.empty()) {
      const auto chosen = taken.begin() + below(static_cast<int64_t>(taken.size()));
      for (int64_t i = 0; i < chosen->second; ++i) used[static_cast<size_t>(chosen->first + i)] = false;
      places.give_back(chosen->first, chosen->second);
      taken.erase(chosen);
      continue;
    }
    const int64_t size = 1 + below(12);
    int64_t expected = -1;
    for (int64_t first = 0, length = 0; first < kCapacity && expected < 0; ++first) {
      length = used[static_cast<size_t>(first)] ? 0 : length + 1;
      if (length == size) expected = first + 1 - size;
    }
    ASSERT_EQ(places.take(size), expected);
    if (expected < 0) continue;
    taken.emplace_back(expected, size);
    for (int64_t i = 0; i < size; ++i) used[static_cast<size_t>(expected + i)] = true;
  }
}

TEST(MappedMemory, is_zero_though_it_was_used_before) {
  for (const int64_t elements : {int64_t{0}, int64_t{3}, (int64_t{1} << 18) + 1, kLarge}) {
    for (int again = 0; again < 2; ++again) {
      const at::Tensor zeros = mapped_zeros(elements);
      EXPECT_EQ(zeros.numel(), elements);
      EXPECT_TRUE(zeros.is_contiguous() && zeros.scalar_type() == at::kFloat);
      EXPECT_EQ(at::count_nonzero(zeros).item<int64_t>(), 0);
      zeros.fill_(1);
    }
  }
}

TEST(MappedMemory, of_tensors_that_live_is_theirs_alone) {
  std::vector<at::Tensor> living;
  for (int i = 0; i < 4; ++i) living.push_back(large(i));
  living[1].reset();
  living[1] = large(10);
  give_back_idle_memory();
  const std::vector<double> expected{0, 10, 2, 3};
  for (size_t i = 0; i < living.size(); ++i) {
    EXPECT_TRUE(living[i].eq(expected[i]).all().item<bool>()) << "tensor " << i;
  }
}

TEST(MappedMemory, is_used_again_and_goes_back_on_request) {
  give_back_idle_memory();
  const int64_t before = resident_kib();
  for (int i = 0; i < 5; ++i) large(1);
  EXPECT_LT(resident_kib() - before, 96 * 1024) << "one place of 64 MiB served all five";
  EXPECT_GT(resident_kib() - before, 48 * 1024) << "and stays";
  give_back_idle_memory();
  EXPECT_LT(resident_kib() - before, 16 * 1024);
}

TEST(MappedMemory, does_not_stay_where_the_heap_keeps_what_is_freed) {
  keep_idle_memory(false);
  const int64_t before = resident_kib();
  mapped_zeros(kLarge).fill_(1);
  const int64_t after = resident_kib();
  keep_idle_memory(true);
  EXPECT_LT(after - before, 16 * 1024);
}

TEST(MappedMemory, has_the_dtype_and_shape_asked_for) {
  const at::Tensor half = mapped_empty({kLarge, 2}, at::TensorOptions(at::kBFloat16));
  EXPECT_EQ(half.sizes(), (at::IntArrayRef{kLarge, 2}));
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
  EXPECT_EQ(mapped_empty({2, 0}, at::kFloat).numel(), 0);
}

}  // namespace
}  // namespace ghostshard::fsdp
