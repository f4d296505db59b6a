// The rows of units that the tests of matrices are run on, on the device under test.
#pragma once

#include <gtest/gtest.h>

#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {

using backend::there;
using backend::zero_parts;
using oracle::at_unit;
using oracle::Tokens;

struct LinearCase {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t inputs, outputs;
  Tokens tokens = Tokens::kIndependent;
  at::ScalarType type = at::kFloat;
};

// Elementwise |x − expected| ≤ allowed, up to the oracle's own rounding.
inline void expect_within(const at::Tensor& x, const at::Tensor& expected, const at::Tensor& allowed) {
  const at::Tensor excess = (x.cpu().to(at::kDouble) - expected).abs() - allowed - 1e-15 * expected.abs();
  EXPECT_TRUE(excess.numel() == 0 || excess.max().item<double>() <= 0) << excess.max();
}

}  // namespace ghostshard::kernels
