#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "accountant/report.h"
#include "accountant/report/svg_plot.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json report(const json& facts = json::object(), const json& header_changes = json::object()) {
  LedgerContents contents;
  contents.header = {{"adjacency", "zero-out"},
                     {"run_id", "run 7"},
                     {"unit_of_privacy", "document"},
                     {"units", 2560},
                     {"expected_batch", 256}};
  contents.header.update(header_changes);
  contents.head = std::string(64, 'b');
  contents.header_hash = std::string(64, 'a');
  const Event event = PoissonGaussianEvent{SamplingRate(256.0 / 2560), NoiseMultiplier(2)};
  for (int64_t step = 0; step < 20; ++step) contents.entries.push_back({step + 1, step, 0, event, ""});
  return build_report(contents, Delta(1e-6), facts);
}

std::string rounded_up(const json& value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", std::ceil(value.get<double>() * 1e4) / 1e4);
  return text;
}

TEST(ReportHtml, ShowsTheClaimAndWhereItComesFrom) {
  const json built = report();
  EXPECT_THAT(render_report_html(built),
              testing::AllOf(HasSubstr("ε ≤ " + rounded_up(built.at("guarantee").at("epsilon").at("upper"))),
                             HasSubstr("δ = 10⁻⁶"), HasSubstr("one document"), HasSubstr("zero-out"),
                             HasSubstr(std::string(64, 'b')), HasSubstr("What is not covered"), HasSubstr("μ-GDP"),
                             HasSubstr("<svg"), HasSubstr("RDP"), HasSubstr("Not checkable by code")));
}

TEST(ReportHtml, HoldsEveryTextOfTheReport) {
  const json built = report({{"claim_boundary", {{"not_covered", {"the moon", "the tide"}}}}, {"weather", "fine"}});
  const std::string page = render_report_html(built);
  for (const char* text : {"the moon", "the tide", "fine"}) EXPECT_THAT(page, HasSubstr(text));
  for (const json& item : built.at("not_promised").at("list")) EXPECT_THAT(page, HasSubstr(escape_html(item)));
  for (const json& item : built.at("assumptions")) EXPECT_THAT(page, HasSubstr(escape_html(item.at("assumption"))));
  for (const json& sentence : built.at("in_plain_words")) EXPECT_THAT(page, HasSubstr(escape_html(sentence)));
}

TEST(ReportHtml, LoadsNothingAndRunsNothing) {
  const std::string page = render_report_html(report());
  for (const char* never :
       {"<script", "<link", "<img", "<iframe", "http://", "https://", "url(", "@import", " href=", " src="})
    EXPECT_THAT(page, Not(HasSubstr(never)));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

// Every place where a user's text can get in.
const std::string kHostile = "</style><script>alert(\"1\")</script>'&";

struct Place {
  const char* name;
  json facts;
  json header_changes;
};
void PrintTo(const Place& c, std::ostream* out) { *out << c.name; }

class HostileText : public testing::TestWithParam<Place> {};

TEST_P(HostileText, IsEscaped) {
  const std::string page = render_report_html(report(GetParam().facts, GetParam().header_changes));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39;&amp;"));
}

INSTANTIATE_TEST_SUITE_P(
    Places, HostileText,
    testing::Values(Place{"SectionText", {{"trust_model", kHostile}}, json::object()},
                    Place{"Field", {{"mechanism", {{"clipping_style", kHostile}}}}, json::object()},
                    Place{"FieldName", {{"mechanism", {{kHostile, 1}}}}, json::object()},
                    Place{"List", {{"claim_boundary", {{"not_covered", {kHostile}}}}}, json::object()},
                    Place{"NotCoveredAsText", {{"claim_boundary", {{"not_covered", kHostile}}}}, json::object()},
                    Place{"Nested", {{"provenance", {{"ranks", {{"name", kHostile}}}}}}, json::object()},
                    Place{"NestedName", {{"provenance", {{"ranks", {{kHostile, 2}}}}}}, json::object()},
                    Place{"FurtherFact", {{"weather", kHostile}}, json::object()},
                    Place{"RunId", json::object(), {{"run_id", kHostile}}},
                    Place{"Unit", json::object(), {{"unit_of_privacy", kHostile}}},
                    Place{"Version", json::object(), {{"library_version", kHostile}}},
                    Place{"HeaderNumberThatIsText", json::object(), {{"clip_norm", kHostile}}},
                    Place{"Units", json::object(), {{"units", kHostile}}}),
    [](const auto& c) { return c.param.name; });

TEST(ReportHtml, EveryOpenedElementIsClosed) {
  const std::string page = render_report_html(report());
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z][a-z0-9]*)[^>]*?(/?)>");
  const std::string body = page.substr(page.find("<main>"));
  for (std::sregex_iterator it(body.begin(), body.end(), tag), end; it != end; ++it) {
    if ((*it)[3] == "/") continue;
    if ((*it)[1] != "/") {
      open.push_back((*it)[2]);
    } else if ((*it)[2] != "body" && (*it)[2] != "html") {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), (*it)[2].str());
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(ReportHtml, AVoidGuaranteeShowsNoClaim) {
  const std::string page = render_report_html(report({{"sampler", {{"executed", "shuffled epochs"}}}}));
  EXPECT_THAT(page, testing::AllOf(HasSubstr("No guarantee is claimed"), HasSubstr("do not quote this number"),
                                   Not(HasSubstr("What is guaranteed"))));
}

TEST(ReportHtml, WarnsOfALargeDeltaAndOfUnnoisedNumbers) {
  EXPECT_THAT(render_report_html(report(json::object(), {{"units", 1000000}})),
              HasSubstr("not below 1 / (number of units)"));
  EXPECT_THAT(render_report_html(report({{"released_outputs", {{"nonprivate_metrics", true}}}})),
              HasSubstr("Whoever saw them"));
}

TEST(ReportHtml, OfARunThatReleasedNothing) {
  LedgerContents contents;
  contents.header = {{"adjacency", "add-or-remove"}};
  contents.head = contents.header_hash = std::string(64, 'c');
  EXPECT_THAT(render_report_html(build_report(contents, Delta(1e-6), json::object())), HasSubstr("ε ≤ 0.0000"));
}

TEST(ReportHtml, RefusesWhatIsNoReport) {
  EXPECT_THROW((void)render_report_html(json::array()), std::invalid_argument);
  EXPECT_THROW((void)render_report_html({{"schema", "other/1"}}), std::invalid_argument);
  EXPECT_THROW((void)render_report_html({{"schema", kReportSchema}}), std::invalid_argument);
}

// ---------------------------------------------------------------------------------------------------------------------
// Charts

struct Ticks {
  const char* name;
  double most;
  bool whole;
  std::vector<double> expected;
};
void PrintTo(const Ticks& c, std::ostream* out) { *out << c.name; }

class LinearTicks : public testing::TestWithParam<Ticks> {};

TEST_P(LinearTicks, AreRound) {
  EXPECT_THAT(linear_ticks(GetParam().most, GetParam().whole),
              testing::Pointwise(testing::DoubleEq(), GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(Ranges, LinearTicks,
                         testing::Values(Ticks{"Units", 5, false, {0, 1, 2, 3, 4, 5}},
                                         Ticks{"Fives", 23, false, {0, 5, 10, 15, 20, 25}},
                                         Ticks{"Parts", 0.3, false, {0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3}},
                                         Ticks{"FewWholes", 3, true, {0, 1, 2, 3}},
                                         Ticks{"Nothing", 0, false, {0, 0.2, 0.4, 0.6, 0.8, 1}},
                                         Ticks{"Thousands", 14063, true, {0, 5000, 10000, 15000}}),
                         [](const auto& c) { return c.param.name; });

TEST(DrawSvg, BreaksTheLineWhereNothingIsKnown) {
  Plot plot{.title = "t", .x_label = "x", .y_label = "y"};
  plot.series = {{"a", {{0, 1}, {1, NAN}, {2, 3}, {3, 4}}}};
  const std::string svg = draw_svg(plot);
  const std::string path = svg.substr(svg.find("line-0"));
  EXPECT_EQ(std::count(path.begin(), path.begin() + static_cast<int64_t>(path.find("/>")), 'M'), 2);
}

TEST(DrawSvg, OfNothingFiniteSaysSo) {
  Plot plot{.title = "t", .x_label = "x", .y_label = "y", .log_x = true};
  plot.series = {{"a", {{0, 1}, {1e-3, HUGE_VAL}}}};
  EXPECT_THAT(draw_svg(plot), HasSubstr("nothing finite to draw"));
}

TEST(DrawSvg, StaysInItsBox) {
  Plot plot{.title = "t", .x_label = "x", .y_label = "y", .log_x = true};
  plot.series = {{"a", {{1e-15, 1000}, {1e-2, 0.01}}}, {"b", {{1e-15, 5000}, {1e-2, 3}}}};
  const std::string svg = draw_svg(plot);
  const std::regex pair("[ML]([-0-9.]+) ([-0-9.]+)");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pair), end; it != end; ++it) {
    EXPECT_GE(std::stod((*it)[1]), 0);
    EXPECT_LE(std::stod((*it)[1]), 430);
    EXPECT_GE(std::stod((*it)[2]), 0);
    EXPECT_LE(std::stod((*it)[2]), 310);
  }
}

}  // namespace
}  // namespace ghostshard::accountant
