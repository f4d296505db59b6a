#include "accountant/report_verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>

#include "accountant/report.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Verdict = Finding::Verdict;

LedgerContents ledger() {
  LedgerContents contents;
  contents.header = {{"adjacency", "zero-out"},
                     {"run_id", "run 7"},
                     {"unit_of_privacy", "document"},
                     {"units", 2560},
                     {"facts", {{"sampler", {{"executed", "poisson"}}}}}};
  contents.header_hash = std::string(64, 'a');
  const Event event = PoissonGaussianEvent{SamplingRate(256.0 / 2560), NoiseMultiplier(2)};
  for (int64_t step = 0; step < 3; ++step)
    contents.entries.push_back({step + 1, step, 0, event, std::string(64, static_cast<char>('1' + step))});
  contents.head = contents.entries.back().hash;
  return contents;
}

json report(const json& facts = json::object()) { return build_report(ledger(), Delta(1e-6), facts); }

std::vector<std::string> with(Verdict verdict, const std::vector<Finding>& findings) {
  std::vector<std::string> all;
  for (const Finding& finding : findings)
    if (finding.verdict == verdict) all.push_back(finding.what);
  return all;
}

TEST(VerifyReport, AgreesWithTheLedgerItWasMadeFrom) {
  const auto findings = verify_report(ledger(), report());
  EXPECT_THAT(with(Verdict::kDiffers, findings), testing::IsEmpty());
  EXPECT_THAT(with(Verdict::kCannotTell, findings), testing::IsEmpty());
  EXPECT_THAT(with(Verdict::kAgrees, findings), testing::Contains(HasSubstr("guarantee (")));
}

TEST(VerifyReport, SurvivesTheWayThroughAFile) {
  EXPECT_THAT(with(Verdict::kDiffers, verify_report(ledger(), json::parse(report().dump()))), testing::IsEmpty());
}

// Version 0.1.0 said that delta was the probability of an exception. Its reports are still what the ledger gives.
TEST(VerifyReport, TakesTheFormerWordingForThePresentOne) {
  json old = report();
  const double epsilon = old.at("guarantee").at("epsilon").at("upper");
  ASSERT_LT(epsilon, 7);
  std::array<char, 32> factor{};
  std::snprintf(factor.data(), factor.size(), "%.2f", std::ceil(std::exp(epsilon) * 100) / 100);
  old["in_plain_words"][0] =
      "What difference can any one document make? Replacing the record of any one document by one "
      "that contributes nothing makes no outcome of this run more than " +
      std::string(factor.data()) +
      " times as likely, or as unlikely, as it was, except for a part of probability at most "
      "10\u207b\u2076.";
  EXPECT_THAT(with(Verdict::kDiffers, verify_report(ledger(), old)), testing::IsEmpty());
  old["in_plain_words"][0] = "No one can ever learn anything.";
  EXPECT_THAT(with(Verdict::kDiffers, verify_report(ledger(), old)), testing::SizeIs(1));
}

TEST(VerifyReport, NamesWhatWasStatedLater) {
  const json facts = {{"tuning", {{"number_of_runs", 3}}},
                      {"claim_boundary", "training only"},
                      {"weather", "fine"},
                      {"unit_of_privacy", {{"units_per_person", 2}}}};
  const auto findings = verify_report(ledger(), report(facts));
  EXPECT_THAT(with(Verdict::kDiffers, findings), testing::IsEmpty());
  EXPECT_THAT(with(Verdict::kCannotTell, findings),
              testing::UnorderedElementsAre(HasSubstr("tuning: number_of_runs"), HasSubstr("claim_boundary"),
                                            HasSubstr("weather"), HasSubstr("unit_of_privacy: units_per_person")));
}

struct Falsehood {
  const char* name;
  std::function<void(json&)> change;
  const char* finding;
};
void PrintTo(const Falsehood& c, std::ostream* out) { *out << c.name; }

class FalseReport : public testing::TestWithParam<Falsehood> {};

TEST_P(FalseReport, IsFoundOut) {
  json built = report({{"tuning", {{"number_of_runs", 3}}}});
  GetParam().change(built);
  EXPECT_THAT(with(Verdict::kDiffers, verify_report(ledger(), built)),
              testing::Contains(HasSubstr(GetParam().finding)));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FalseReport,
    testing::Values(
        Falsehood{"SmallerEpsilon", [](json& r) { r["guarantee"]["epsilon"]["upper"] = 0.001; },
                  "guarantee.epsilon.upper: the report says 0.001, the ledger gives"},
        Falsehood{"AnotherDelta", [](json& r) { r["guarantee"]["delta"] = 1e-3; }, "guarantee.epsilon.upper"},
        Falsehood{"AnotherUnit", [](json& r) { r["guarantee"]["unit"] = "person"; }, "guarantee.unit"},
        Falsehood{"AnotherStatement", [](json& r) { r["guarantee"]["statement"] = "safe"; }, "guarantee.statement"},
        Falsehood{"AddedClaim", [](json& r) { r["guarantee"]["certified"] = true; },
                  "guarantee.certified: the ledger gives no such value"},
        Falsehood{"FewerSteps", [](json& r) { r["population_and_steps"]["steps_executed"] = 2; },
                  "population_and_steps.steps_executed"},
        Falsehood{"AnotherHead", [](json& r) { r["provenance"]["ledger_head"] = std::string(64, '9'); },
                  "provenance.ledger_head"},
        Falsehood{"AnotherSampler", [](json& r) { r["sampler"]["executed"] = "shuffled"; }, "sampler.executed"},
        Falsehood{"MissingSection", [](json& r) { r.erase("assumptions"); },
                  "assumptions: the report has no such section"},
        Falsehood{"MissingWarning", [](json& r) { r["not_promised"]["list"].erase(0); }, "not_promised.list"},
        Falsehood{"AddedSection", [](json& r) { r["seal"] = "gold"; }, "seal: no section of a report"},
        Falsehood{"AssumptionWhitened", [](json& r) { r["assumptions"].back()["checked"] = true; }, "assumptions["}),
    [](const auto& c) { return c.param.name; });

TEST(VerifyReport, RefusesWhatIsNoReport) {
  EXPECT_THROW((void)verify_report(ledger(), json::array()), std::invalid_argument);
  EXPECT_THROW((void)verify_report(ledger(), {{"schema", kReportSchema}}), std::invalid_argument);
  json built = report();
  built["guarantee"]["delta"] = "small";
  EXPECT_THROW((void)verify_report(ledger(), built), std::invalid_argument);
}

TEST(VerifyHead, SaysWhatAHeadKeptElsewhereProves) {
  const auto differs = [](const std::optional<std::string>& head) {
    return with(Verdict::kDiffers, verify_head(ledger(), head));
  };
  EXPECT_THAT(differs(std::string(64, '3')), testing::IsEmpty());
  EXPECT_THAT(differs(std::string(64, '2')), testing::ElementsAre(HasSubstr("after release 2: 1 releases came later")));
  EXPECT_THAT(differs(std::string(64, 'a')), testing::ElementsAre(HasSubstr("after release 0: 3 releases came later")));
  EXPECT_THAT(differs(std::string(64, '7')), testing::ElementsAre(HasSubstr("of no line of this ledger")));
  EXPECT_THAT(with(Verdict::kCannotTell, verify_head(ledger(), std::nullopt)),
              testing::ElementsAre(HasSubstr("the last line was changed, lines are missing at the end")));
}

TEST(VerifyPlan, NamesTheRuleThatALineBreaks) {
  LedgerContents changed = ledger();
  EXPECT_THAT(verify_plan(changed), testing::IsEmpty());
  changed.header["noise_multiplier"] = 900.0;
  EXPECT_THAT(with(Verdict::kDiffers, verify_plan(changed)),
              testing::ElementsAre(HasSubstr("Every charged noise multiplier is the planned one.")));
}

TEST(VerifyHead, SaysThatALineWasCutShort) {
  LedgerContents cut = ledger();
  cut.dropped_partial_line = true;
  EXPECT_THAT(with(Verdict::kCannotTell, verify_head(cut, cut.head)), testing::ElementsAre(HasSubstr("cut short")));
}

}  // namespace
}  // namespace ghostshard::accountant
