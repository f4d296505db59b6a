// docs/guarantee.md, fact 2: with automatic clipping, too, a unit's term is its gradient times a factor of its own
// norm, and of norm at most C.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

constexpr double kClip = 0.75;

// The sum over units whose gradients are those of the bias alone.
double sum_of(const std::vector<double>& gradients) {
  const auto mesh = lone_mesh();
  SingleLinear layer(*mesh, 1, 1);
  const auto plan = dp::DpPlan::make({.units = 100,
                                      .expected_batch = 100,
                                      .steps = 10,
                                      .clip_norm = accountant::ClipNorm(kClip),
                                      .clipping = dp::Clipping::kAutomatic,
                                      .noise_multiplier = accountant::NoiseMultiplier(1e-30)});
  const auto units = static_cast<int64_t>(gradients.size());
  const auto segments = std::make_shared<kernels::Segments>(kernels::Segments::even(units, 1));
  return released_sum(layer, plan, dp::RecordingChoice::kAutomatic, at::zeros({units, 1}),
                      at::tensor(gradients, at::kDouble).to(at::kFloat).unsqueeze(1), segments)[1]
      .item<double>();
}

TEST(AutomaticClipping, ScalesEachUnitByItsOwnNormToAtMostTheClipNorm) {
  for (const double norm : {1e-20, 1e-6, 0.01, 0.3, 1.0, 77.0, 1e8, 1e30}) {
    const double scaled = sum_of({norm});
    EXPECT_LE(scaled, kClip) << norm;
    // 2^-22 of shrinking, some 2^-24 of each of a few roundings, and the norm's own upper bound.
    EXPECT_NEAR(scaled, kClip * norm / (norm + 0.01), 1e-6 * scaled) << norm;
    EXPECT_NEAR(sum_of({norm, -0.5}), scaled - kClip * 0.5 / 0.51, 1e-6);
  }
  EXPECT_NEAR(sum_of({0.0}), 0, 1e-25) << "noise of 1e-30";
}

TEST(AutomaticClipping, LeavesOutWhatIsNotFinite) {
  const double other = sum_of({0.5});
  for (const double gradient :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 3e38}) {
    EXPECT_EQ(sum_of({gradient, 0.5}), other) << gradient;
  }
}

}  // namespace
}  // namespace ghostshard::tests
