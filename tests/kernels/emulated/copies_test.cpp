// Asynchronous copies, and matrices from shared memory: the emulation finds the faults it is made to find.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/device/copy_async.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/load_matrices.cuh"
#include "kernels/device/panel.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared.cuh"
#include "tests/emulation/cuda/executor.h"

namespace ghostshard::kernels::device {
namespace {

using emulation::Fault;

constexpr int kPieces = 4;

struct Pieces {
  alignas(kWidest) float of[kPieces][4];
};

// Copies the input piece by piece, each in a group of its own, and reads one piece after a wait for all but some
// groups.
template <int kPending>
void reads_the_second_of_four(const float* in, float* out) {
  auto& shared = block_shared<Pieces>();
  for (int i = 0; i < kPieces; ++i) {
    copy_async<16>(shared.of[i], in + 4 * i, 16);
    commit_copies();
  }
  wait_for_copies<kPending>();
  out[0] = shared.of[1][0];
  wait_for_copies<0>();
  out[1] = shared.of[3][3];
}

void copies_part_of_a_piece(const float* in, float* out) {
  auto& shared = block_shared<Pieces>();
  copy_async<16>(shared.of[0], in, 8);
  copy_async<4>(&shared.of[1][0], in + 5, 4);
  copy_async<8>(&shared.of[1][2], in + 6, 0);
  commit_copies();
  wait_for_copies<0>();
  std::copy_n(&shared.of[0][0], 4, out);
  out[4] = shared.of[1][0], out[5] = shared.of[1][2];
}

void ends_without_waiting(const float* in, float* /*out*/) {
  copy_async<16>(block_shared<Pieces>().of[0], in, 16);
  commit_copies();
}

void copies_to_the_middle_of_a_piece(const float* in, float* /*out*/) {
  copy_async<16>(&block_shared<Pieces>().of[0][1], in, 16);
}

void copies_from_the_middle_of_a_piece(const float* in, float* /*out*/) {
  copy_async<16>(block_shared<Pieces>().of[0], in + 1, 0);
}

std::vector<float> run_once(void (*kernel)(const float*, float*)) {
  alignas(kWidest) float in[16];
  std::iota(in, in + 16, 0.0f);
  std::vector<float> out(6, -1);
  launch("kernel", kernel, {.work = 1, .threads = 1, .shared_bytes = sizeof(Pieces)}, nullptr, in, out.data());
  return out;
}

TEST(Copies, AreThereAfterTheWaitThatGuaranteesThemAndNotBefore) {
  EXPECT_EQ(run_once(reads_the_second_of_four<2>)[0], 4);
  EXPECT_TRUE(std::isnan(run_once(reads_the_second_of_four<3>)[0]));
  EXPECT_EQ(run_once(reads_the_second_of_four<3>)[1], 15);
}

TEST(Copies, AreFilledUpWithZeros) {
  EXPECT_EQ(run_once(copies_part_of_a_piece), (std::vector<float>{0, 1, 0, 0, 5, 0}));
}

TEST(Copies, ThatNoDeviceDoesAreFaults) {
  EXPECT_THROW(run_once(ends_without_waiting), Fault);
  EXPECT_THROW(run_once(copies_to_the_middle_of_a_piece), Fault);
  EXPECT_THROW(run_once(copies_from_the_middle_of_a_piece), Fault);
}

// ---------------------------------------------------------------------------------------------------------------------
// Panels: every entry in its place, whatever the rows' alignment is.

constexpr int kDepth = 32;
constexpr int64_t kExtent = 50, kDeep = 45, kBegin = 32;

struct PanelCase {
  const char* name;
  int64_t stride, shift;  // of the rows; of the first of them from an aligned address
};

class Panels : public testing::TestWithParam<PanelCase> {};

template <typename View>
void unfold_panel(View view, float* out) {
  using OfPanel = Panel<View, kDepth, 2>;
  struct Storage {
    alignas(kWidest) typename View::Element panel[kTile * kDepth];
  };
  auto& shared = block_shared<Storage>();
  OfPanel::template fill<128>(shared.panel, view, kBegin, kDeep);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += 128) {
    const int m = i / kDepth, k = i % kDepth;
    out[i] = to_float(shared.panel[View::kDepthIsContiguous ? OfPanel::at(m, k) : OfPanel::at(k, m)]);
  }
}

template <typename View>
void expect_panel(const PanelCase& c) {
  using Element = typename View::Element;
  constexpr int64_t kBytes = sizeof(Element);
  // The view's elements lie between other numbers that would show in the result.
  std::vector<Element> memory(static_cast<size_t>(80 * c.stride + 32));
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.data()) % kWidest) / kBytes;
  Element* const first = memory.data() + (kWidest / kBytes - misaligned) % (kWidest / kBytes) + c.shift;
  const auto value = [](int64_t line, int64_t i) { return static_cast<float>(1 + (line * 7 + i) % 120); };
  for (int64_t line = 0; line < 79; ++line) {
    for (int64_t i = 0; i < c.stride; ++i) {
      if constexpr (std::is_same_v<Element, BFloat16>) {
        first[line * c.stride + i].bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value(line, i)) >> 16);
      } else {
        first[line * c.stride + i] = static_cast<Element>(value(line, i));
      }
    }
  }
  std::vector<float> out(kTile * kDepth);
  launch("unfold_panel", unfold_panel<View>,
         {.work = 1, .threads = 128, .shared_bytes = kTile * kDepth * static_cast<size_t>(kBytes)}, nullptr,
         View{first, c.stride, kExtent}, out.data());
  for (int64_t m = 0; m < kTile; ++m) {
    for (int64_t k = 0; k < kDepth; ++k) {
      const int64_t deep = kBegin + k;
      const float there = View::kDepthIsContiguous ? value(m, deep) : value(deep, m);
      ASSERT_EQ(out[static_cast<size_t>(m * kDepth + k)], m < kExtent && deep < kDeep ? there : 0) << m << ", " << k;
    }
  }
}

TEST_P(Panels, HoldEveryEntryInItsPlaceAndZerosBeyondTheEdge) {
  expect_panel<RowsView<BFloat16>>(GetParam());
  expect_panel<ColumnsView<BFloat16>>(GetParam());
  expect_panel<RowsView<float>>(GetParam());
  expect_panel<ColumnsView<float>>(GetParam());
  expect_panel<RowsView<double>>(GetParam());
  expect_panel<ColumnsView<double>>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(, Panels,
                         testing::Values(PanelCase{"Aligned", 64, 0}, PanelCase{"OddStride", 67, 0},
                                         PanelCase{"EvenStride", 66, 0}, PanelCase{"StrideOfFour", 68, 0},
                                         PanelCase{"OddFirst", 64, 1}, PanelCase{"EvenFirst", 64, 2}),
                         [](const auto& test) { return test.param.name; });

// ---------------------------------------------------------------------------------------------------------------------
// The instruction, element by element as the PTX ISA's figures show it.

constexpr int kRow = 8;  // elements: 16 bytes

struct MatrixRows {
  alignas(kWidest) uint16_t row[64][kRow];
};

template <bool kTransposed>
void read_matrices(int first, int apart, uint32_t* out) {
  auto& shared = block_shared<MatrixRows>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 64 * kRow; i += kWarp) shared.row[i / kRow][i % kRow] = static_cast<uint16_t>(i);
  __syncthreads();
  uint32_t fragment[4];
  const void* row = &shared.row[0][0] + first + kRow * (lane * apart % 64);
  if constexpr (kTransposed) {
    load_matrices_transposed(fragment, row);
  } else {
    load_matrices(fragment, row);
  }
  std::copy_n(fragment, 4, out + 4 * lane);
}

template <bool kTransposed>
std::vector<uint32_t> matrices_read(int first, int apart) {
  std::vector<uint32_t> out(4 * kWarp);
  launch("read_matrices", read_matrices<kTransposed>, {.work = 1, .threads = kWarp, .shared_bytes = sizeof(MatrixRows)},
         nullptr, first, apart, out.data());
  return out;
}

TEST(Matrices, AreInTheFragmentsThatTheProductTakes) {
  const std::vector<uint32_t> plain = matrices_read<false>(0, 1), transposed = matrices_read<true>(0, 1);
  const auto element = [](int matrix, int row, int column) {
    return static_cast<uint32_t>((8 * matrix + row) * kRow + column);
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * lane + i, group = lane >> 2, in_group = lane & 3;
      EXPECT_EQ(plain[static_cast<size_t>(at)], element(i, group, 2 * in_group) | element(i, group, 2 * in_group + 1)
                                                                                      << 16);
      EXPECT_EQ(transposed[static_cast<size_t>(at)],
                element(i, 2 * in_group, group) | element(i, 2 * in_group + 1, group) << 16);
    }
  }
}

TEST(Matrices, WhoseRowsLieInTheSameBanksOrAcrossPiecesAreFaults) {
  EXPECT_NO_THROW(matrices_read<false>(0, 3));
  EXPECT_THROW(matrices_read<false>(0, 2), Fault);
  EXPECT_THROW(matrices_read<true>(0, 8), Fault);
  EXPECT_THROW(matrices_read<true>(4, 1), Fault);
}

}  // namespace
}  // namespace ghostshard::kernels::device
