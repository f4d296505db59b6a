#include "examples/gpt2/number_text.h"

#include <gtest/gtest.h>

namespace ghostshard::tests {
namespace {

TEST(EpsilonText, is_rounded_up_and_leaves_what_needs_no_rounding) {
  using gpt2::epsilon_text;
  EXPECT_EQ(epsilon_text(1.1), "1.1000") << "1.1 * 1e4 is above 11000";
  EXPECT_EQ(epsilon_text(8), "8.0000");
  EXPECT_EQ(epsilon_text(3.55192), "3.5520");
  EXPECT_EQ(epsilon_text(3.55197), "3.5520");
  EXPECT_EQ(epsilon_text(0.99999), "1.0000");
  EXPECT_EQ(epsilon_text(1e-9), "0.0001");
  EXPECT_EQ(epsilon_text(2.0001, 3), "2.001");
  EXPECT_EQ(epsilon_text(0), "0.0000");
}

}  // namespace
}  // namespace ghostshard::tests
