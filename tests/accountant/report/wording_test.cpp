// Sentences that readers quote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "accountant/gaussian/single_release.h"
#include "accountant/report.h"
#include "accountant/report/parts.h"
#include "tests/accountant/report/report_of_ledger.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using report_parts::plain_words;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string first_words(double epsilon, double delta) {
  EpsilonBound bound;
  bound.upper = epsilon;
  return plain_words(bound, Delta(delta), Adjacency::kZeroOut, "text", json::array()).at(0);
}

struct Words {
  const char* name;
  double epsilon;
  const char *factor, *twice;
};
void PrintTo(const Words& c, std::ostream* out) { *out << c.name; }
class PlainWords : public testing::TestWithParam<Words> {};
TEST_P(PlainWords, SayHowManyTimes) {
  EXPECT_THAT(
      first_words(GetParam().epsilon, 1e-6),
      AllOf(HasSubstr(std::string("at most ") + GetParam().factor + " times as likely as it was, plus 10\u207b\u2076."),
            HasSubstr(std::string("more than ") + GetParam().twice +
                      " times as likely as it was with a probability of "
                      "at most 2×10\u207b\u2076.")));
}
INSTANTIATE_TEST_SUITE_P(Factors, PlainWords,
                         testing::Values(Words{"Nothing", 0, "1.01", "2.01"}, Words{"One", 1, "2.72", "5.44"},
                                         Words{"Eight", 8, "2,981", "5,962"},
                                         Words{"Fifteen", 15, "3,269,018", "6,538,035"},
                                         Words{"Thirty", 30, "1.07×10\u00b9\u00b3", "2.14×10\u00b9\u00b3"},
                                         Words{"BeyondADouble", 900, "e^900.00", "e^900.70"}),
                         [](const auto& c) { return c.param.name; });

// The sentence is one that holds: with P(loss > epsilon) itself, which is more than delta, the former one was false.
TEST(PlainWords, WhatFollowsHoldsOfARelease) {
  const double sigma = 0.7;
  const double delta = 1e-6;
  const double epsilon = single_release_epsilon(Direction::kRemove, SampledGaussian{1, sigma}, Delta(delta)).upper;
  // The loss of one Gaussian is N(mu²/2, mu²), mu = 1/sigma.
  const auto exceeds = [&](double level) {
    return 0.5 * std::erfc((level - 0.5 / (sigma * sigma)) * sigma / std::sqrt(2.0));
  };
  EXPECT_GT(exceeds(epsilon), 2 * delta);
  EXPECT_LE(exceeds(epsilon + std::log(2.0)), 2 * delta);
  EXPECT_THAT(first_words(epsilon, delta), Not(HasSubstr("except for")));
}

TEST(Summary, ShowsNoNulls) {
  const json refused = report(json::object(), {{"facts", {{"sampler", {{"executed", "shuffled"}}}}}});
  ASSERT_EQ(refused.at("guarantee").at("applies"), json(false));
  EXPECT_THAT(summarize_report(refused),
              AllOf(Not(HasSubstr("null")), HasSubstr("had it all been as accounted: epsilon in [")));
  EXPECT_THAT(summarize_report(report()), Not(HasSubstr("null")));
}

}  // namespace
}  // namespace ghostshard::accountant
