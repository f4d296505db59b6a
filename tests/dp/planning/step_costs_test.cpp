// The costs of a step's pieces on a machine: written down and read again, measured, the same on all ranks.
#include "dp/planning/step_costs.h"

#include <gmock/gmock.h>

#include "tests/support/run_on_device.h"

namespace ghostshard::tests {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const kernels::MeasuredLayer kSmall{.units = 2, .rows = 6, .inputs = 8, .outputs = 5};

std::vector<double> numbers(const dp::StepCosts& costs) {
  const auto& r = costs.rates;
  return {r.product_flops,
          r.gram_flops,
          r.bytes,
          r.seconds_per_row_element,
          r.narrow_from_rows,
          r.narrow_slowdown,
          costs.link_bytes_per_second,
          costs.room_bytes};
}

TEST(StepCosts, SurviveBeingWrittenDown) {
  dp::StepCosts costs;
  costs.rates = {1.0 / 3, 2e12, 3.5, 4e-12, 5, 6.25};
  costs.link_bytes_per_second = 7e9 / 3;
  EXPECT_EQ(numbers(dp::StepCosts::from_json(costs.to_json())), numbers(costs));
  costs.room_bytes = 3e9;
  EXPECT_EQ(numbers(dp::StepCosts::from_json(costs.to_json())), numbers(costs));
}

TEST(StepCosts, AreRefusedWithTheNameOfWhatIsWrong) {
  const auto read = [](const std::string& text) { return [text] { dp::StepCosts::from_json(text); }; };
  EXPECT_THAT(read("no json"), ThrowsMessage<std::invalid_argument>(HasSubstr("product_flops must be there")));
  for (const auto& [found, written] : {std::pair{"\"bytes\":10000000000.0", "\"bytes\":0"},
                                       {"\"bytes\":10000000000.0", "\"bytes\":-1"},
                                       {"\"bytes\":10000000000.0", "\"bytes\":\"fast\""},
                                       {"\"bytes\":10000000000.0", "\"bites\":1"}}) {
    std::string text = dp::StepCosts().to_json();
    ASSERT_NE(text.find(found), std::string::npos) << text;
    text.replace(text.find(found), std::string(found).size(), written);
    EXPECT_THAT(read(text), ThrowsMessage<std::invalid_argument>(HasSubstr("bytes must be there, finite and > 0")));
  }
}

TEST(StepCosts, AreTheUsualOnesOnTheCpu) {
  const auto mesh = fsdp::Mesh::single();
  auto found = dp::step_costs(*mesh, at::kFloat, "");
  EXPECT_GT(found.room_bytes, 1 << 20);
  EXPECT_LT(found.room_bytes, 1e15);
  found.room_bytes = dp::StepCosts().room_bytes;
  EXPECT_EQ(numbers(found), numbers({}));
}

TEST(StepCosts, AreMeasuredWhereModelsAre) {
  for (const at::ScalarType rows : {at::kFloat, at::kBFloat16}) {
    if (rows == at::kBFloat16 && test_device().is_cpu()) continue;  // float32 rows alone reach the CPU's kernels
    const auto measured = kernels::measured_rates(test_device(), rows, kSmall);
    EXPECT_THAT(numbers({.rates = measured, .room_bytes = 1}),
                testing::Each(testing::AllOf(testing::Gt(0), testing::Lt(1e18))));
    EXPECT_GE(measured.narrow_slowdown, 1);
    EXPECT_EQ(measured.narrow_from_rows, kernels::usual_rates(test_device().type(), rows).narrow_from_rows);
    EXPECT_NE(measured.product_flops, kernels::usual_rates(test_device().type(), rows).product_flops);
  }
}

TEST(StepCosts, AreThoseOfTheFirstRankOnAll) {
  std::vector<std::vector<double>> found(2);
  run_there({.shard = 2}, [&](fsdp::Mesh& mesh) {
    found[static_cast<size_t>(mesh.rank())] = numbers(dp::step_costs(mesh, at::kFloat, "", kSmall));
  });
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0].front() == numbers({}).front(), test_device().is_cpu());
}

TEST(StepCosts, OfAnEarlierSessionAreTaken) {
  dp::StepCosts earlier;
  earlier.rates.product_flops = 123;
  earlier.room_bytes = 4567;
  const auto mesh = lone_mesh();
  const auto found = numbers(dp::step_costs(*mesh, at::kFloat, earlier.to_json(), kSmall));
  EXPECT_EQ(found, numbers(earlier));
  EXPECT_ANY_THROW(dp::step_costs(*mesh, at::kFloat, "{}", kSmall));
}

}  // namespace
}  // namespace ghostshard::tests
