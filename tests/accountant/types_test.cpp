#include "accountant/types.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <type_traits>

namespace ghostshard::accountant {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Epsilon and delta cannot be swapped, and a bare double is neither.
static_assert(!std::is_convertible_v<double, Epsilon>);
static_assert(!std::is_constructible_v<Delta, Epsilon>);
static_assert(!std::is_constructible_v<NoiseMultiplier, ClipNorm>);

struct Refused {
  const char* name;
  std::function<void()> make;
  const char* message;
};

void PrintTo(const Refused& c, std::ostream* out) { *out << c.name; }

class CheckedTypeRefuses : public testing::TestWithParam<Refused> {};

TEST_P(CheckedTypeRefuses, AndSaysTheRuleAndTheValue) {
  try {
    GetParam().make();
    FAIL() << "was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), GetParam().message);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Values, CheckedTypeRefuses,
    testing::Values(
        Refused{"EpsilonNaN", [] { Epsilon e(kNaN); }, "epsilon must be finite and >= 0, got nan"},
        Refused{"EpsilonInfinite", [] { Epsilon e(kInfinity); }, "epsilon must be finite and >= 0, got inf"},
        Refused{"EpsilonNegative", [] { Epsilon e(-1e-9); }, "epsilon must be finite and >= 0, got -1e-09"},
        Refused{"DeltaNaN", [] { Delta d(kNaN); }, "delta must lie strictly between 0 and 1, got nan"},
        Refused{"DeltaZero", [] { Delta d(0); }, "delta must lie strictly between 0 and 1, got 0"},
        Refused{"DeltaOne", [] { Delta d(1); }, "delta must lie strictly between 0 and 1, got 1"},
        Refused{"DeltaNegative", [] { Delta d(-0.5); }, "delta must lie strictly between 0 and 1, got -0.5"},
        Refused{"NoiseMultiplierNaN", [] { NoiseMultiplier s(kNaN); },
                "noise multiplier must be finite and > 0, got nan"},
        Refused{"NoiseMultiplierZero", [] { NoiseMultiplier s(0); }, "noise multiplier must be finite and > 0, got 0"},
        Refused{"NoiseMultiplierInfinite", [] { NoiseMultiplier s(kInfinity); },
                "noise multiplier must be finite and > 0, got inf"},
        Refused{"SamplingRateNaN", [] { SamplingRate q(kNaN); }, "sampling rate must be > 0 and <= 1, got nan"},
        Refused{"SamplingRateZero", [] { SamplingRate q(0); }, "sampling rate must be > 0 and <= 1, got 0"},
        Refused{"SamplingRateAboveOne", [] { SamplingRate q(1.5); }, "sampling rate must be > 0 and <= 1, got 1.5"},
        Refused{"ClipNormNaN", [] { ClipNorm c(kNaN); }, "clip norm must lie between 1e-30 and 1e30, got nan"},
        Refused{"ClipNormNegative", [] { ClipNorm c(-1); }, "clip norm must lie between 1e-30 and 1e30, got -1"},
        Refused{"ClipNormThatVanishes", [] { ClipNorm c(1e-46); },
                "clip norm must lie between 1e-30 and 1e30, got 1e-46"},
        Refused{"ClipNormThatIsInfinite", [] { ClipNorm c(1e39); },
                "clip norm must lie between 1e-30 and 1e30, got 1e+39"}),
    [](const auto& c) { return c.param.name; });

TEST(CheckedType, KeepsItsValueAtTheEdgesThatAreAllowed) {
  EXPECT_EQ(Epsilon(0).value(), 0);
  EXPECT_EQ(SamplingRate(1).value(), 1);
  EXPECT_EQ(NoiseMultiplier(kLargest).value(), kLargest);
  EXPECT_LT(Delta(1e-6), Delta(1e-5));
}

}  // namespace
}  // namespace ghostshard::accountant
