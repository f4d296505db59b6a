// What a caller adds to a report, what it must not, and where the report is written.
#include "accountant/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/accountant/report/report_of_ledger.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

// -----------------------------------------------------------------------------------------------------------------
// Facts

TEST(ReportFacts, AnObjectIsMergedIntoItsSection) {
  const json built = report({{"noise_source", {{"generator", "ChaCha20"}}}, {"tuning", {{"number_of_runs", 3}}}});
  EXPECT_EQ(built.at("noise_source").at("generator"), "ChaCha20");
  EXPECT_EQ(built.at("noise_source").at("dtype"), kNotStated);
  EXPECT_EQ(built.at("tuning").at("number_of_runs"), 3);
}

TEST(ReportFacts, ATextStandsForItsWholeSection) {
  const json built = report({{"claim_boundary", "training only"}});
  EXPECT_EQ(built.at("claim_boundary").at("stated"), "training only");
  EXPECT_FALSE(built.at("claim_boundary").contains("covered"));
}

TEST(ReportFacts, ATextForTheSamplerIsWhatWasExecuted) {
  EXPECT_EQ(report({{"sampler", "shuffled"}}).at("guarantee").at("applies"), false);
  EXPECT_EQ(report({{"sampler", "poisson"}}).at("guarantee").at("applies"), true);
}

TEST(ReportFacts, AnUnknownNameIsKeptApart) {
  EXPECT_EQ(report({{"weather", "fine"}}).at("further_facts").at("weather"), "fine");
}

TEST(ReportFacts, OfTheLedgerCountAndCannotBeTalkedAway) {
  const json in_ledger = {
      {"facts", {{"sampler", {{"executed", "shuffled epochs"}}}, {"tuning", {{"included", false}}}}}};
  const json built = report(json::object(), in_ledger);
  EXPECT_EQ(built.at("guarantee").at("applies"), false);
  EXPECT_EQ(built.at("tuning").at("included"), false);
  EXPECT_FALSE(built.at("provenance").at("ledger_header").contains("facts"));
  EXPECT_EQ(report({{"tuning", {{"number_of_runs", 3}}}}, in_ledger).at("tuning").at("number_of_runs"), 3);
  EXPECT_THAT(
      [&] {
        (void)report({{"sampler", {{"executed", "poisson"}}}}, in_ledger);
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("must not contradict the ledger's header, they do in sampler.executed")));
  EXPECT_THAT(
      [&] {
        (void)report({{"sampler", "poisson"}}, in_ledger);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("they do in sampler")));
}

struct BadFacts {
  const char* name;
  json facts;
  const char* message;
};

void PrintTo(const BadFacts& c, std::ostream* out) { *out << c.name; }

class RefusedFacts : public testing::TestWithParam<BadFacts> {};

TEST_P(RefusedFacts, SayWhy) {
  EXPECT_THAT([] { (void)report(GetParam().facts); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Facts, RefusedFacts,
    testing::Values(
        BadFacts{"NoObject", "text", "facts must be a JSON object"},
        BadFacts{"TheGuarantee", {{"guarantee", {{"extra", 1}}}}, "must not state the guarantee"},
        BadFacts{"AComputedField",
                 {{"population_and_steps", {{"steps_executed", 1}}}},
                 "must not state population_and_steps.steps_executed"},
        BadFacts{"TheAssumedSampler", {{"sampler", {{"assumed", "shuffle"}}}}, "must not state sampler.assumed"}),
    [](const auto& c) { return c.param.name; });

TEST(Report, RefusesALedgerWithoutAdjacency) {
  EXPECT_THROW((void)report(json::object(), {{"adjacency", nullptr}}), std::invalid_argument);
}

TEST(Report, RefusesAnUnknownAccountant) {
  EXPECT_THROW((void)build_report(ledger(), Delta(1e-6), json::object(), "none"), std::invalid_argument);
}

// -----------------------------------------------------------------------------------------------------------------
// Output

TEST(SummarizeReport, FitsATerminalAndNamesTheLedger) {
  const std::string text = summarize_report(report());
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 12);
  EXPECT_THAT(text, testing::AllOf(HasSubstr(statement(report())), HasSubstr(std::string(64, 'b')),
                                   HasSubstr("3 executed, 4 planned, 4 releases charged (1 of later attempts)"),
                                   HasSubstr("not promised")));
}

TEST(SummarizeReport, NamesAnAssumptionThatDoesNotHold) {
  EXPECT_THAT(summarize_report(report(json::object(), {{"planned_steps", 2}})),
              HasSubstr("DOES NOT HOLD    No more steps were executed than planned."));
  EXPECT_THAT(summarize_report(report()), Not(HasSubstr("DOES NOT HOLD")));
}

class WriteJsonFile : public testing::Test {
 protected:
  int64_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }
  const tests::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(WriteJsonFile, ReplacesTheOldFileAndLeavesNothingElse) {
  const auto path = folder_ / "report.json";
  write_json_file(path, {{"old", 1}});
  write_json_file(path, report());
  std::ifstream in(path);
  EXPECT_EQ(json::parse(in), report());
  EXPECT_EQ(files(), 1);
}

TEST_F(WriteJsonFile, RefusesInfinityAndKeepsTheOldFile) {
  const auto path = folder_ / "report.json";
  write_json_file(path, {{"old", 1}});
  EXPECT_THROW(write_json_file(path, {{"epsilon", HUGE_VAL}}), std::invalid_argument);
  std::ifstream in(path);
  EXPECT_EQ(json::parse(in).at("old"), 1);
  EXPECT_EQ(files(), 1);
}

TEST_F(WriteJsonFile, SaysPathAndReasonAndLeavesNoPartialFile) {
  EXPECT_THAT([&] { write_json_file(folder_ / "missing" / "report.json", json::object()); },
              ThrowsMessage<std::invalid_argument>(
                  testing::AllOf(HasSubstr("missing/report.json"), HasSubstr("No such file or directory"))));
  std::filesystem::create_directory(folder_ / "taken");
  EXPECT_THROW(write_json_file(folder_ / "taken", json::object()), std::invalid_argument);
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace ghostshard::accountant
