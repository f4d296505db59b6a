// Granules change where shards are cut and nothing else: noise is keyed by the global element, so twenty private steps
// end in the same bits.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "dp/mechanism/optimizer.h"
#include "dp/optimizers/coded_adamw.h"
#include "tests/dp/optimizers/private_steps.h"

namespace ghostshard::tests {
namespace {

struct GranuleCase {
  const char* name;
  fsdp::Granule granule;
};
void PrintTo(const GranuleCase& c, std::ostream* out) { *out << c.name; }

using Case = std::tuple<GranuleCase, std::string, int64_t>;
class PrivateStepsWithGranules : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(, PrivateStepsWithGranules,
                         testing::Combine(testing::Values(GranuleCase{"stretches", fsdp::Granule::elements(256)},
                                                          GranuleCase{"rows", fsdp::Granule::rows()},
                                                          GranuleCase{"rows_16", fsdp::Granule::rows(16)},
                                                          GranuleCase{"tiles", fsdp::Granule::tiles(8)},
                                                          GranuleCase{"heads", fsdp::Granule::heads(4)},
                                                          GranuleCase{"whole", fsdp::Granule::whole()}),
                                          testing::Values("sgd", "adamw"), testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param) + "_on_" +
                                  std::to_string(std::get<2>(test.param)) + "_ranks";
                         });

TEST_P(PrivateStepsWithGranules, EndInTheBitsOfGranuleOne) {
  const auto& [granule, rule, ranks] = GetParam();
  const fsdp::MeshShape shape{.shard = ranks};
  static std::map<std::pair<std::string, int64_t>, Weights> by_elements;  // the comparison's other side, once
  auto& expected = by_elements[{rule, ranks}];
  if (expected.empty()) expected = private_steps(shape, fsdp::Granule::elements(1), rule, 20);
  const Weights found = private_steps(shape, granule.granule, rule, 20);
  for (const auto& [name, value] : found) EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
  EXPECT_GT((expected.at("weight") - start_of({96, 40})).abs().max().item<double>(), 1e-3) << "nothing was trained";
}

}  // namespace
}  // namespace ghostshard::tests
