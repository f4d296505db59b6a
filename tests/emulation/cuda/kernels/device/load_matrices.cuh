// Replaces kernels/device/load_matrices.cuh: the instruction on the CPU, by the whole warp. It refuses rows that a
// device would read one after the other, because no result would show that.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/device/vector.h"
#include "tests/emulation/cuda/executor.h"

namespace ghostshard::kernels::device {

struct MatrixLane {
  uint32_t* out;
  const void* row;
};

template <bool kTransposed>
void load_fragments(void* const (&all)[emulation::kLanes]) {
  for (int i = 0; i < 4; ++i) {
    uint16_t matrix[8][8];
    unsigned banks = 0;
    for (int r = 0; r < 8; ++r) {
      const void* row = static_cast<const MatrixLane*>(all[8 * i + r])->row;
      if (!is_aligned<kWidest>(row)) throw emulation::Fault("ldmatrix: a row that is not at a multiple of 16 bytes");
      banks |= 1U << (reinterpret_cast<uintptr_t>(row) / kWidest % 8);
      std::memcpy(matrix[r], row, sizeof matrix[r]);
    }
    if (banks != 0xff) throw emulation::Fault("ldmatrix: two rows of a matrix in the same banks");
    for (int lane = 0; lane < emulation::kLanes; ++lane) {
      const int across = lane / 4, along = 2 * (lane % 4);
      const uint32_t low = kTransposed ? matrix[along][across] : matrix[across][along];
      const uint32_t high = kTransposed ? matrix[along + 1][across] : matrix[across][along + 1];
      static_cast<const MatrixLane*>(all[lane])->out[i] = low | high << 16;
    }
  }
}

inline void load_matrices(uint32_t (&out)[4], const void* row) {
  MatrixLane mine{out, row};
  emulation::warp_collective("ldmatrix", &mine, load_fragments<false>);
}

inline void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  MatrixLane mine{out, row};
  emulation::warp_collective("ldmatrix.trans", &mine, load_fragments<true>);
}

}  // namespace ghostshard::kernels::device
