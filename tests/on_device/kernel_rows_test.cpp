// Rows that reach the kernels of a device as they were recorded, without a conversion.
#include <gtest/gtest.h>

#include "dp/recording/recorder.h"
#include "tests/support/device.h"

namespace ghostshard::tests {
namespace {

at::Tensor rows(at::ScalarType type) { return at::randn({3, 4}).to(type); }

TEST(KernelRows, OfOneNarrowFormatStayAsTheyAreOnADevice) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor a = there(rows(type)), g = there(rows(type));
    const auto [kernel_a, kernel_g] = dp::kernel_rows(a, g);
    EXPECT_TRUE(kernel_a.is_same(a) && kernel_g.is_same(g)) << type;
  }
}

TEST(KernelRows, OfSeveralFormatsBecomeFloat32) {
  const at::Tensor a = there(rows(at::kBFloat16)), g = there(rows(at::kHalf)), e = there(rows(at::kFloat));
  for (const auto& pair : {dp::kernel_rows(a, g), dp::kernel_rows(a, e), dp::kernel_rows(e, a)}) {
    for (const at::Tensor& x : pair) EXPECT_EQ(x.scalar_type(), at::kFloat);
  }
  EXPECT_TRUE(at::equal(dp::kernel_rows(a, g)[0].cpu(), a.cpu().to(at::kFloat)));
}

TEST(KernelRows, OnTheCpuAreFloat32) {
  const auto [a, g] = dp::kernel_rows(rows(at::kBFloat16), rows(at::kBFloat16));
  EXPECT_EQ(a.scalar_type(), at::kFloat);
  EXPECT_EQ(g.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace ghostshard::tests
