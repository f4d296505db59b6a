// What a report takes for granted, and what it says of it.
#include "accountant/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/accountant/report/report_of_ledger.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

struct Assumption {
  const char* name;
  const char* text;
  json header_changes;
  bool checked;
  bool holds;
};

void PrintTo(const Assumption& c, std::ostream* out) { *out << c.name; }

class ReportAssumption : public testing::TestWithParam<Assumption> {};

TEST_P(ReportAssumption, IsListedWithWhatIsKnownOfIt) {
  const json built = report(json::object(), GetParam().header_changes);
  const json* found = nullptr;
  for (const json& assumption : built.at("assumptions"))
    if (assumption.at("assumption").get<std::string>().find(GetParam().text) != std::string::npos) found = &assumption;
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->at("checked"), GetParam().checked);
  EXPECT_EQ(found->contains("holds"), GetParam().checked);
  EXPECT_EQ(found->value("holds", false), GetParam().holds);
}

INSTANTIATE_TEST_SUITE_P(
    All, ReportAssumption,
    testing::Values(Assumption{"Chain", "hash chain", json::object(), true, true},
                    Assumption{"RateIsBatchOverUnits", "expected_batch / units", json::object(), true, true},
                    Assumption{"RateIsNot", "expected_batch / units", {{"expected_batch", 128}}, true, false},
                    Assumption{"NoiseAsPlanned", "planned one", json::object(), true, true},
                    Assumption{"NoiseIsNot", "planned one", {{"noise_multiplier", 1.2}}, true, false},
                    Assumption{"StepsAsPlanned", "No more steps", json::object(), true, true},
                    Assumption{"StepsAreNot", "No more steps", {{"planned_steps", 2}}, true, false},
                    Assumption{"NoNoiseTwice", "key epoch, step and attempt", json::object(), true, true},
                    Assumption{"LedgerComplete", "ledger is complete", json::object(), false, false},
                    Assumption{"Sampling", "included in each step independently", json::object(), false, false},
                    Assumption{"Sensitivity", "at most the stated L2 norm", json::object(), false, false},
                    Assumption{"Noise", "independent of the data", json::object(), false, false},
                    Assumption{"FloatingPoint", "floating-point", json::object(), false, false},
                    Assumption{"Constants", "without looking at the data", json::object(), false, false},
                    Assumption{"Units", "belongs to one unit", json::object(), false, false},
                    Assumption{"NothingElseLeft", "left the trusted machines", json::object(), false, false}),
    [](const auto& c) { return c.param.name; });

// What is assumed and said of the sampler depends on what was released.
struct Kind {
  const char* name;
  Event event;
  const char* engine;
  const char* adjacency;
  const char* sampler;                // as the report names it
  std::vector<const char*> listed;    // parts of assumptions
  std::vector<const char*> unlisted;  // that would be out of place
};

void PrintTo(const Kind& c, std::ostream* out) { *out << c.name; }

constexpr const char* kIndependent = "included in each step independently";
constexpr const char* kUniform = "uniformly among all batches of exactly the charged size";
constexpr const char* kKept = "those kept were chosen uniformly";
constexpr const char* kCount = "counts each unit once";

class ReportOfKind : public testing::TestWithParam<Kind> {};

TEST_P(ReportOfKind, SaysWhatItTakesForGranted) {
  const Kind& kind = GetParam();
  LedgerContents contents = ledger({{"adjacency", kind.adjacency}});
  for (LedgerEntry& entry : contents.entries) entry.event = kind.event;
  const json built = build_report(contents, Delta(1e-6), json::object(), kind.engine);
  EXPECT_EQ(built.at("sampler").at("assumed"), kind.sampler);
  EXPECT_THAT(summarize_report(built), HasSubstr(kind.sampler));
  const std::string list = built.at("assumptions").dump();
  for (const char* text : kind.listed) EXPECT_THAT(list, HasSubstr(text));
  for (const char* text : kind.unlisted) EXPECT_THAT(list, Not(HasSubstr(text)));
  EXPECT_TRUE(built.at("guarantee").at("epsilon").at("upper").is_number());
}

INSTANTIATE_TEST_SUITE_P(
    All, ReportOfKind,
    testing::Values(Kind{"Gaussian",
                         GaussianEvent{NoiseMultiplier(9)},
                         "contour",
                         "replace-one",
                         "none (every unit in every step)",
                         {},
                         {kIndependent, kUniform, kKept, kCount}},
                    Kind{"Poisson",
                         PoissonGaussianEvent{SamplingRate(0.1), NoiseMultiplier(2)},
                         "contour",
                         "zero-out",
                         "poisson",
                         {kIndependent},
                         {kUniform, kKept, kCount}},
                    Kind{"TruncatedPoisson",
                         TruncatedPoissonGaussianEvent{2560, SamplingRate(0.1), 400, NoiseMultiplier(2)},
                         "contour",
                         "zero-out",
                         "truncated-poisson",
                         {kIndependent, kKept},
                         {kUniform, kCount}},
                    Kind{"AdaptiveClipping",
                         AdaptiveClippingEvent{SamplingRate(0.1), NoiseMultiplier(2), NoiseMultiplier(10)},
                         "contour",
                         "add-or-remove",
                         "poisson",
                         {kIndependent, kCount},
                         {kUniform, kKept}},
                    Kind{"FixedSize",
                         FixedSizeGaussianEvent{2560, 256, NoiseMultiplier(2)},
                         "rdp",
                         "replace-one",
                         "fixed-size",
                         {kUniform},
                         {kIndependent, kKept, kCount}}),
    [](const auto& c) { return c.param.name; });

TEST(Report, AUnitNamedWithItsNumberReadsWell) {
  const json built = report(json::object(), {{"unit_of_privacy", "one text"}});
  EXPECT_EQ(built.at("guarantee").at("unit"), "text");
  EXPECT_THAT(built.dump(), Not(HasSubstr("one one")));
  EXPECT_THAT(summarize_report(built), HasSubstr("any one text"));
}

TEST(SummarizeReport, OfARunWithoutAPlanSaysSo) {
  LedgerContents contents = ledger();
  contents.header.erase("planned_steps");
  EXPECT_THAT(summarize_report(build_report(contents, Delta(1e-6), json::object())),
              HasSubstr("3 executed, none stated as planned, 4 releases charged"));
}

}  // namespace
}  // namespace ghostshard::accountant
