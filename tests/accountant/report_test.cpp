#include "accountant/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/accountant/report/report_of_ledger.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// -----------------------------------------------------------------------------------------------------------------
// Every field, at its place

struct Field {
  const char* name;
  const char* pointer;
  json value;
};

void PrintTo(const Field& c, std::ostream* out) { *out << c.pointer; }

class ReportField : public testing::TestWithParam<Field> {};

TEST_P(ReportField, HasItsValueWithoutAnyFacts) {
  const json built = report();
  ASSERT_TRUE(built.contains(json::json_pointer(GetParam().pointer)));
  EXPECT_EQ(built.at(json::json_pointer(GetParam().pointer)), GetParam().value);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, ReportField,
    testing::Values(
        Field{"Schema", "/schema", "ghostshard.privacy_report/1"},
        Field{"TrustModel", "/trust_model/model", kNotStated},
        Field{"TrustedParties", "/trust_model/trusted_parties", kNotStated},
        Field{"WhoSeesWhat", "/trust_model/who_sees_what", kNotStated},
        Field{"Unit", "/unit_of_privacy/unit", "document"},
        Field{"UnitDefinition", "/unit_of_privacy/definition", kNotStated},
        Field{"UnitPacking", "/unit_of_privacy/packing", kNotStated},
        Field{"UnitsPerPerson", "/unit_of_privacy/units_per_person", kNotStated},
        Field{"Adjacency", "/adjacency/relation", "zero-out"},
        Field{"AdjacencyPublicN", "/adjacency/number_of_units_is_public", true},
        Field{"BoundaryAccounted", "/claim_boundary/accounted", "the releases in the ledger and nothing else"},
        Field{"BoundaryCovered", "/claim_boundary/covered", kNotStated},
        Field{"BoundaryNotCovered", "/claim_boundary/not_covered", kNotStated},
        Field{"Released", "/released_outputs/released", kNotStated},
        Field{"NonprivateMetrics", "/released_outputs/nonprivate_metrics", kNotStated},
        Field{"TuningIncluded", "/tuning/included", kNotStated},
        Field{"TuningRuns", "/tuning/number_of_runs", kNotStated},
        Field{"GuaranteeApplies", "/guarantee/applies", true}, Field{"GuaranteeDelta", "/guarantee/delta", 1e-6},
        Field{"GuaranteeUpper", "/guarantee/epsilon/upper", four_releases(1e-6).upper},
        Field{"GuaranteeLower", "/guarantee/epsilon/lower", four_releases(1e-6).lower},
        Field{"GuaranteeEstimate", "/guarantee/epsilon/estimate", four_releases(1e-6).estimate},
        Field{"GuaranteeAdjacency", "/guarantee/adjacency", "zero-out"},
        Field{"GuaranteeUnit", "/guarantee/unit", "document"},
        Field{"GuaranteeAccountant", "/guarantee/accountant", "contour"},
        Field{"GuaranteeDirection", "/guarantee/direction", four_releases(1e-6).direction},
        Field{"GuaranteeDetail", "/guarantee/accountant_detail", four_releases(1e-6).detail},
        Field{"GuaranteeVersion", "/guarantee/library_version", kLibraryVersion},
        Field{"GuaranteeDeltaBelowOneOverN", "/guarantee/delta_below_one_over_units", true},
        Field{"CurveFirstDelta", "/privacy_curve/points/0/delta", 1e-15},
        Field{"CurveFirstEpsilon", "/privacy_curve/points/0/epsilon/upper", four_releases(1e-15).upper},
        Field{"CurveDecades", "/privacy_curve/points/6/delta", 1e-12},
        Field{"CurveLastDelta", "/privacy_curve/points/31/delta", 0.8},
        Field{"CurveLastEpsilon", "/privacy_curve/points/31/epsilon/upper", four_releases(0.8).upper},
        Field{"GdpHoldsFrom", "/privacy_curve/gaussian_dp/holds_for_delta_from", 1e-15},
        Field{"SpendingBegins", "/spending/points/0", {{"releases", 0}, {"epsilon", 0.0}}},
        Field{"SpendingEnds", "/spending/points/4", {{"releases", 4}, {"epsilon", four_releases(1e-6).upper}}},
        Field{"RdpDelta", "/rdp/delta", 1e-6},
        Field{"RdpUpper", "/rdp/epsilon/upper", four_releases(1e-6, "rdp").upper},
        Field{"UnderContour", "/accountants/contour/epsilon/upper", four_releases(1e-6).upper},
        Field{"UnderRdp", "/accountants/rdp/epsilon/upper", four_releases(1e-6, "rdp").upper},
        Field{"UnderRdpCurve", "/accountants/rdp/curve/0/upper", four_releases(1e-15, "rdp").upper},
        Field{"SamplerAssumed", "/sampler/assumed", "poisson"},
        Field{"SamplerExecuted", "/sampler/executed", kNotStated},
        Field{"SamplerExecutedIsAssumed", "/sampler/executed_is_assumed", nullptr},
        Field{"Units", "/population_and_steps/units", 2560},
        Field{"ExpectedBatch", "/population_and_steps/expected_batch", 256},
        Field{"RatePlanned", "/population_and_steps/sampling_rate_planned", kRate},
        Field{"RatesCharged", "/population_and_steps/sampling_rates_charged", {kRate}},
        Field{"StepsPlanned", "/population_and_steps/steps_planned", 4},
        Field{"StepsExecuted", "/population_and_steps/steps_executed", 3},
        Field{"ReleasesCharged", "/population_and_steps/releases_charged", 4},
        Field{"FirstAttempt", "/population_and_steps/attempts/0", {{"attempt", 0}, {"releases", 3}}},
        Field{"SecondAttempt", "/population_and_steps/attempts/1", {{"attempt", 1}, {"releases", 1}}},
        Field{"KeyEpochs", "/provenance/key_epochs/0", {{"epoch", 0}, {"run_id", "run 7"}, {"releases", 4}}},
        Field{"Resumptions", "/provenance/resumptions_in_ledger/seen", 1},
        Field{"ResumedWhere",
              "/provenance/resumptions_in_ledger/at/0",
              {{"at_line", 4}, {"step", 2}, {"new_key", false}, {"steps_charged_again", true}}},
        Field{"LaterAttempts", "/population_and_steps/releases_of_later_attempts", 1},
        Field{"TruncationCap", "/population_and_steps/truncation_cap", kNotStated},
        Field{"SkippedBatches", "/population_and_steps/skipped_batches", kNotStated},
        Field{"DroppedTail", "/population_and_steps/dropped_tail", kNotStated},
        Field{"NoiseCharged", "/mechanism/noise_multipliers_charged", {2.0}},
        Field{"NoisePlanned", "/mechanism/noise_multiplier_planned", 2.0},
        Field{"ClipNorm", "/mechanism/clip_norm", 0.5}, Field{"EventCount", "/mechanism/events/0/releases", 4},
        Field{"EventType", "/mechanism/events/0/event/type", "poisson_gaussian"},
        Field{"ClippingStyle", "/mechanism/clipping_style", kNotStated},
        Field{"Normaliser", "/mechanism/normaliser", kNotStated},
        Field{"Microbatching", "/mechanism/microbatching", kNotStated},
        Field{"NoiseGenerator", "/noise_source/generator", kNotStated},
        Field{"KeyCustody", "/noise_source/key_custody", kNotStated},
        Field{"NoiseDtype", "/noise_source/dtype", kNotStated},
        Field{"FloatingPoint", "/noise_source/floating_point_caveat", kNotStated},
        Field{"NoisePlacement", "/noise_source/placement", kNotStated}, Field{"RunId", "/provenance/run_id", "run 7"},
        Field{"LedgerSchema", "/provenance/ledger_schema", kLedgerSchema},
        Field{"LedgerHead", "/provenance/ledger_head", std::string(64, 'b')},
        Field{"LedgerHeaderHash", "/provenance/ledger_header_hash", std::string(64, 'a')},
        Field{"LedgerHeader", "/provenance/ledger_header", ledger().header},
        Field{"LedgerEntries", "/provenance/ledger_entries", 4},
        Field{"LedgerPartialLine", "/provenance/ledger_partial_line_dropped", false},
        Field{"VersionOfRun", "/provenance/library_version_of_run", kLibraryVersion},
        Field{"VersionOfReport", "/provenance/library_version_of_report", kLibraryVersion},
        Field{"CodeCommit", "/provenance/code_commit", kNotStated},
        Field{"ConfigHash", "/provenance/config_hash", kNotStated},
        Field{"CheckpointLineage", "/provenance/checkpoint_lineage", kNotStated},
        Field{"AuditResult", "/empirical_audit/result", kNotStated}),
    [](const auto& c) { return c.param.name; });

// -----------------------------------------------------------------------------------------------------------------
// Resumptions, from the ledger alone

struct Resumed {
  const char* name;
  std::vector<std::pair<int64_t, int64_t>> releases;      // step, attempt; -1: a new key from this step on
  std::vector<std::tuple<int64_t, bool, bool>> expected;  // step, under a new key, charged again
};

void PrintTo(const Resumed& c, std::ostream* out) { *out << c.name; }

class ReportOfResumedRun : public testing::TestWithParam<Resumed> {};

TEST_P(ReportOfResumedRun, TellsWhereItWentOn) {
  LedgerContents contents = ledger();
  const Event event = contents.entries.front().event;
  contents.entries.clear();
  int64_t line = 0;
  for (const auto& [step, attempt] : GetParam().releases) {
    ++line;
    if (attempt < 0)
      contents.epochs.push_back({line, static_cast<int64_t>(contents.epochs.size()) + 1, step, "again", {}, ""});
    else
      contents.entries.push_back({line, step, attempt, event, ""});
  }
  const json built = build_report(contents, Delta(1e-6), json::object(), "rdp");
  const json& resumptions = built.at("provenance").at("resumptions_in_ledger");
  std::vector<std::tuple<int64_t, bool, bool>> found;
  for (const json& at : resumptions.at("at"))
    found.emplace_back(at.at("step"), at.at("new_key"), at.at("steps_charged_again"));
  EXPECT_EQ(found, GetParam().expected);
  EXPECT_EQ(resumptions.at("seen"), GetParam().expected.size());
  EXPECT_EQ(summarize_report(built).find("resumed") != std::string::npos, !GetParam().expected.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Ledgers, ReportOfResumedRun,
    testing::Values(Resumed{"Never", {{0, 0}, {1, 0}, {2, 0}}, {}},
                    Resumed{"StepsAgain", {{0, 0}, {1, 0}, {2, 0}, {1, 1}, {2, 1}, {3, 0}}, {{1, false, true}}},
                    Resumed{"Twice", {{0, 0}, {1, 0}, {1, 1}, {2, 0}, {1, 2}}, {{1, false, true}, {1, false, true}}},
                    Resumed{"NewKey", {{0, 0}, {1, -1}, {1, 0}}, {{1, true, false}}},
                    Resumed{"NewKeyAndStepsAgain", {{0, 0}, {1, 0}, {1, -1}, {1, 1}, {2, 0}}, {{1, true, true}}},
                    Resumed{"NewKeyAtTheEnd", {{0, 0}, {1, -1}}, {{1, true, false}}},
                    Resumed{"TwoKeysInARow", {{0, 0}, {1, -1}, {1, -1}, {1, 0}}, {{1, true, false}, {1, true, false}}}),
    [](const auto& c) { return c.param.name; });

TEST(Report, HasTheSixteenSectionsAndNothingUnknown) {
  std::vector<std::string> names;
  const json built = report();
  for (const auto& [name, section] : built.items()) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "schema", "assumptions", "trust_model", "unit_of_privacy", "adjacency", "claim_boundary",
                         "released_outputs", "tuning", "guarantee", "privacy_curve", "rdp", "sampler",
                         "population_and_steps", "mechanism", "noise_source", "provenance", "empirical_audit",
                         "not_promised", "accountants", "spending", "in_plain_words"));
}

TEST(Report, EveryAttemptIsCharged) {
  LedgerContents without_the_second_attempt = ledger();
  without_the_second_attempt.entries.pop_back();
  EXPECT_LT(
      build_report(without_the_second_attempt, Delta(1e-6), json::object()).at("guarantee").at("epsilon").at("upper"),
      report().at("guarantee").at("epsilon").at("upper"));
}

TEST(Report, TheCurveHasTheReportedDeltaToo) {
  const json built = build_report(ledger(), Delta(3e-7), json::object());
  bool found = false;
  for (const json& point : built.at("privacy_curve").at("points"))
    found = found || (point.at("delta") == 3e-7 &&
                      point.at("epsilon").at("upper") == built.at("guarantee").at("epsilon").at("upper"));
  EXPECT_TRUE(found);
}

TEST(Report, BoundsMembershipTestsByTheCurve) {
  const json first = report().at("privacy_curve").at("membership_test_bounds").at(0);
  EXPECT_EQ(first.at("false_positive_rate"), 0.1);
  // The curve's best point can only be better than its point at 1e-6; no bound lies below the test of pure chance.
  EXPECT_LE(first.at("true_positive_rate_at_most").get<double>(), std::exp(four_releases(1e-6).upper) * 0.1 + 1e-6);
  EXPECT_GE(first.at("true_positive_rate_at_most").get<double>(), 0.1);
}

TEST(Report, TheCurveFallsAndTheClaimIsOnIt) {
  double before = HUGE_VAL;
  const json whole = report();
  for (const json& point : whole.at("privacy_curve").at("points")) {
    const double upper = point.at("epsilon").at("upper");
    EXPECT_LE(upper, before) << point;
    before = upper;
  }
}

TEST(Report, SpendingNeverFallsAndEndsAtTheClaim) {
  LedgerContents contents = ledger();
  const Event event = contents.entries[0].event;
  contents.entries.clear();
  for (int64_t step = 0; step < 1000; ++step) contents.entries.push_back({step + 1, step, 0, event, ""});
  const json built = build_report(contents, Delta(1e-6), json::object());
  const json& points = built.at("spending").at("points");
  EXPECT_GT(points.size(), 20U);
  EXPECT_LT(points.size(), 40U);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_GT(points[i].at("releases"), points[i - 1].at("releases"));
    EXPECT_GE(points[i].at("epsilon"), points[i - 1].at("epsilon"));
  }
  EXPECT_EQ(points.back().at("releases"), 1000);
  EXPECT_EQ(points.back().at("epsilon"), built.at("guarantee").at("epsilon").at("upper"));
}

TEST(Report, BatchesOfOneSizeAreBoundedMoreTightlyByTheOtherEngines) {
  LedgerContents contents = ledger({{"adjacency", "replace-one"}});
  contents.entries = {{1, 0, 0, FixedSizeGaussianEvent{2560, 256, NoiseMultiplier(2)}, ""}};
  const json built = build_report(contents, Delta(1e-6), {{"sampler", "fixed-size"}}, "rdp");
  EXPECT_EQ(built.at("guarantee").at("applies"), true);
  EXPECT_LT(built.at("accountants").at("contour").at("epsilon").at("upper"),
            built.at("guarantee").at("epsilon").at("upper"));
  EXPECT_EQ(built.at("population_and_steps").at("sampling_rates_charged"), json({kRate}));
  EXPECT_THAT(built.at("guarantee").at("statement"), HasSubstr("by any other record"));
}

TEST(Report, APersonWithSeveralUnitsHasABoundOfTheirOwn) {
  const auto person = [](int64_t units) {
    return report({{"unit_of_privacy", {{"units_per_person", units}}}}).at("unit_of_privacy").at("person");
  };
  EXPECT_GT(person(2).at("epsilon_upper"), four_releases(1e-6).upper * 2);
  EXPECT_GT(person(3).at("epsilon_upper"), person(2).at("epsilon_upper"));
  EXPECT_EQ(person(2).at("delta"), 1e-6);
  EXPECT_FALSE(report().at("unit_of_privacy").contains("person"));
}

TEST(Report, TheSameNoiseTwiceVoidsTheGuarantee) {
  LedgerContents contents = ledger();
  contents.entries.back().attempt = 0;  // step 2 twice, under one key
  const json built = build_report(contents, Delta(1e-6), json::object());
  EXPECT_EQ(built.at("guarantee").at("applies"), false);
  EXPECT_THAT(built.at("guarantee").at("statement"), HasSubstr("the same noise may have been added to both"));
  LedgerEpoch another_key;
  another_key.sequence = 4;
  another_key.number = 1;
  contents.epochs = {another_key};
  contents.entries.back().sequence = 5;
  EXPECT_EQ(build_report(contents, Delta(1e-6), json::object()).at("guarantee").at("applies"), true);
}

// -----------------------------------------------------------------------------------------------------------------
// The statement

TEST(ReportStatement, SaysUnitAdjacencyAndNumbersRoundedUp) {
  const double upper = four_releases(1e-6).upper;
  char rounded[32];
  std::snprintf(rounded, sizeof rounded, "epsilon = %.4f", std::ceil(upper * 1e4) / 1e4);
  EXPECT_THAT(statement(report()),
              testing::AllOf(HasSubstr("replacing the record of any one document by one that contributes nothing"),
                             HasSubstr(rounded), HasSubstr("delta = 1e-06"), HasSubstr("Under the assumptions listed"),
                             HasSubstr("one document at a time")));
  EXPECT_GE(std::stod(std::string(rounded).substr(10)), upper);
}

TEST(ReportStatement, OfAddOrRemoveSaysSo) {
  const json built = report(json::object(), {{"adjacency", "add-or-remove"}});
  EXPECT_THAT(statement(built), HasSubstr("adding or removing any one document"));
  EXPECT_EQ(built.at("adjacency").at("number_of_units_is_public"), false);
}

TEST(ReportStatement, AnotherSamplerVoidsTheGuarantee) {
  const json built = report({{"sampler", {{"executed", "shuffled epochs"}}}});
  EXPECT_EQ(built.at("guarantee").at("applies"), false);
  EXPECT_EQ(built.at("guarantee").at("epsilon").at("upper"), nullptr);
  EXPECT_EQ(built.at("guarantee").at("epsilon_if_it_applied").at("upper"), four_releases(1e-6).upper);
  EXPECT_EQ(built.at("sampler").at("executed_is_assumed"), false);
  EXPECT_THAT(statement(built), testing::StartsWith("No differential privacy guarantee is claimed: the sampler"));
}

TEST(ReportStatement, ThePoissonSamplerStatedIsTheOneAssumed) {
  const json built = report({{"sampler", {{"executed", "poisson"}}}});
  EXPECT_EQ(built.at("guarantee").at("applies"), true);
  EXPECT_EQ(built.at("sampler").at("executed_is_assumed"), true);
}

TEST(ReportStatement, SaysWhereUnnoisedNumbersWereShown) {
  const json built = report({{"released_outputs", {{"nonprivate_metrics", true}}}});
  EXPECT_THAT(statement(built), HasSubstr("whoever saw them has no guarantee"));
  EXPECT_THAT(built.at("not_promised").at("list").at(0), HasSubstr("computed from private data without noise"));
  EXPECT_THAT(statement(report()), Not(HasSubstr("whoever saw them has no guarantee")));
}

TEST(ReportStatement, AnInfiniteEpsilonIsNoGuarantee) {
  LedgerContents contents = ledger();
  contents.entries = {{1, 0, 0, GaussianEvent{NoiseMultiplier(1e-160)}, ""}};
  const json built = build_report(contents, Delta(1e-6), json::object());
  EXPECT_EQ(built.at("guarantee").at("applies"), false);
  EXPECT_EQ(built.at("guarantee").at("epsilon").at("upper"), nullptr);
  EXPECT_THAT(statement(built), HasSubstr("no finite epsilon"));
}

TEST(Report, ADeltaOfOneOverNIsMarked) {
  const json built = build_report(ledger(), Delta(1.0 / 2560), json::object());
  EXPECT_EQ(built.at("guarantee").at("delta_below_one_over_units"), false);
  EXPECT_THAT(summarize_report(built), HasSubstr("not below 1/units"));
}

TEST(Report, WarnsOfPersonsWithSeveralUnitsUnlessThereAreNone) {
  EXPECT_THAT(report().at("not_promised").at("list").dump(), HasSubstr("contributed more than one document"));
  EXPECT_THAT(report({{"unit_of_privacy", {{"units_per_person", 1}}}}).at("not_promised").at("list").dump(),
              Not(HasSubstr("contributed more than one document")));
}

TEST(Report, OfARunThatReleasedNothingIsZero) {
  LedgerContents contents = ledger();
  contents.entries.clear();
  const json built = build_report(contents, Delta(1e-6), json::object());
  EXPECT_EQ(built.at("guarantee").at("epsilon").at("upper"), 0);
  EXPECT_EQ(built.at("population_and_steps").at("steps_executed"), 0);
}

}  // namespace
}  // namespace ghostshard::accountant
