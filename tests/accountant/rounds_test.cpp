#include "accountant/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/receipt.h"
#include "accountant/report_verify.h"
#include "tests/accountant/report/report_of_ledger.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

TEST(Rounds, AreCountedByTheStepsGroup) {
  Rounds rounds(3);
  EXPECT_EQ(rounds.most(), 0);
  EXPECT_TRUE(rounds.add(0));
  EXPECT_FALSE(rounds.add(1));
  EXPECT_TRUE(rounds.add(4)) << "group 1 for the second time";
  EXPECT_FALSE(rounds.add(3));
  EXPECT_TRUE(rounds.add(4)) << "an attempt is a round";
  EXPECT_THAT(rounds.by_group(), ElementsAre(2, 3, 0));
  EXPECT_EQ(Rounds::from_json(rounds.to_json()).by_group(), rounds.by_group());
}

TEST(Rounds, ForeseeWhatFurtherStepsAdd) {
  for (const int64_t groups : {1, 2, 3, 7}) {
    for (const int64_t first : {0, 1, 2, 5, 7, 8}) {
      Rounds now(groups);
      for (int64_t step = 0; step < first; ++step) now.add(step);
      now.add(1);
      Rounds later = now;
      for (int64_t steps = 0; steps < 20; ++steps) {
        EXPECT_EQ(now.most_after(first, steps), later.most()) << groups << " groups, " << steps << " from " << first;
        later.add(first + steps);
      }
    }
  }
}

TEST(Rounds, RefuseWhatIsNoGroupAndNoStep) {
  EXPECT_THROW(Rounds(0), std::invalid_argument);
  EXPECT_THROW(Rounds(2).add(-1), std::invalid_argument);
  EXPECT_EQ(sampling_groups(json::object()), 1);
  EXPECT_EQ(sampling_groups({{"sampling_groups", 8U}}), 8);
  for (const json& bad : {json(0U), json(-2), json(2.5), json("4"), json(nullptr), json(1'000'001U)})
    EXPECT_THROW(sampling_groups({{"sampling_groups", bad}}), std::invalid_argument) << bad;
}

// -----------------------------------------------------------------------------------------------------------------
// Reports of runs with groups. The ledger's four releases are steps 0, 1, 2 and 2 again.

json groups_of(uint64_t groups) {
  return {{"sampling_groups", groups},
          {"expected_batch", 256 / groups},
          {"noise_bands", {1, 0.5}},
          {"facts", {{"sampler", {{"executed", "cyclic-poisson"}}}}}};
}

double epsilon_of(const json& built) { return built.at("guarantee").at("epsilon").at("upper"); }

EpsilonBound releases(int64_t count) {
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  engine->compose(PoissonGaussianEvent{SamplingRate(kRate), NoiseMultiplier(2)}, count);
  return engine->epsilon(Delta(1e-6));
}

TEST(ReportOfGroups, ChargesTheGroupWithTheMostRounds) {
  // Two groups: steps 0, 2 and 2 again are one's. Four groups: step 2 and 2 again.
  EXPECT_EQ(epsilon_of(report(json::object(), groups_of(2))), releases(3).upper);
  EXPECT_EQ(epsilon_of(report(json::object(), groups_of(4))), releases(2).upper);
}

TEST(ReportOfGroups, SaysHowRoundsAreCounted) {
  const json built = report(json::object(), groups_of(2));
  EXPECT_TRUE(built.at("guarantee").at("applies").get<bool>());
  EXPECT_EQ(built.at("population_and_steps").at("groups").at("rounds"), json({3, 1}));
  EXPECT_EQ(built.at("population_and_steps").at("releases_charged"), 4);
  EXPECT_EQ(built.at("sampler").at("assumed"), "cyclic-poisson");
  EXPECT_EQ(built.at("spending").at("points").back(), json({{"releases", 4}, {"epsilon", releases(3).upper}}));
  const std::string assumptions = built.at("assumptions").dump();
  EXPECT_THAT(assumptions, HasSubstr("drew from the group"));
  EXPECT_THAT(assumptions, HasSubstr("weighted by noise_bands"));
  for (const json& assumption : built.at("assumptions")) {
    if (assumption.at("checked").get<bool>()) {
      EXPECT_TRUE(assumption.at("holds").get<bool>()) << assumption;
    }
  }
}

json chain_of(uint64_t groups, const json& steps) {
  json header = groups_of(groups);
  header.erase("noise_bands");
  header["noise_chain"] = {{"steps", steps}, {"decay", 0.75}};
  return header;
}

TEST(ReportOfGroups, ChargesAChainsRoundsAlike) {
  const json built = report(json::object(), chain_of(2, 2U));
  EXPECT_TRUE(built.at("guarantee").at("applies").get<bool>());
  EXPECT_EQ(epsilon_of(built), releases(3).upper);
  EXPECT_THAT(built.at("assumptions").dump(), HasSubstr("that noise_chain in the header names"));
}

TEST(ReportOfGroups, IsVoidIfAChainReachesFurtherThanItsGroups) {
  for (const json& steps : {json(3U), json("2"), json(-2), json()}) {
    const json built = report(json::object(), chain_of(2, steps));
    EXPECT_FALSE(built.at("guarantee").at("applies").get<bool>()) << steps;
    EXPECT_THAT(built.at("guarantee").at("reasons").dump(), HasSubstr("noise_chain must have at most as many steps"));
  }
  json both = chain_of(2, 2U);
  both["noise_bands"] = {1, 0.5};
  EXPECT_FALSE(report(json::object(), both).at("guarantee").at("applies").get<bool>());
  both["noise_chain"] = 2;
  EXPECT_FALSE(report(json::object(), both).at("guarantee").at("applies").get<bool>());
}

TEST(ReportOfGroups, IsVoidIfTheSamplerThatRanHadNone) {
  json header = groups_of(2);
  header["facts"]["sampler"]["executed"] = "poisson";
  EXPECT_FALSE(report(json::object(), header).at("guarantee").at("applies").get<bool>());
}

// Derived for one repeated event under zero-out alone.
TEST(ReportOfGroups, IsVoidIfGroupsAreNotDerived) {
  const auto expect_void = [](const json& built, const char* reason) {
    EXPECT_FALSE(built.at("guarantee").at("applies").get<bool>());
    EXPECT_THAT(built.at("guarantee").at("reasons").dump(), HasSubstr(reason));
  };
  auto other_noise = ledger(groups_of(2));
  other_noise.entries[1].event = PoissonGaussianEvent{SamplingRate(kRate), NoiseMultiplier(2.5)};
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  engine->compose(PoissonGaussianEvent{SamplingRate(kRate), NoiseMultiplier(2)}, 3);
  engine->compose(other_noise.entries[1].event, 1);
  const json built = build_report(other_noise, Delta(1e-6), json::object());
  expect_void(built, "one repeated Poisson-sampled Gaussian");
  EXPECT_EQ(built.at("guarantee").at("epsilon_if_it_applied").at("upper").get<double>(),
            engine->epsilon(Delta(1e-6)).upper);

  json header = groups_of(2);
  header["adjacency"] = "add-or-remove";
  expect_void(report(json::object(), header), "under zero-out alone");

  json far = groups_of(2);
  far["noise_bands"] = {1, 0.5, 0.4};
  expect_void(report(json::object(), far), "noise_bands must be at most as many");
  far["noise_bands"] = "many";
  expect_void(report(json::object(), far), "noise_bands must be at most as many");
}

TEST(ReportOfGroups, IsVerifiedAndAFalseOneIsNot) {
  const auto contents = ledger(groups_of(2));
  const auto differences = [&](const json& stated) {
    std::vector<std::string> found;
    for (const Finding& finding : verify_report(contents, stated))
      if (finding.verdict == Finding::Verdict::kDiffers) found.push_back(finding.what);
    return found;
  };
  json stated = build_report(contents, Delta(1e-6), json::object());
  EXPECT_THAT(differences(stated), IsEmpty());
  stated["guarantee"]["epsilon"]["upper"] = releases(2).upper;
  EXPECT_FALSE(differences(stated).empty());
}

TEST(ReceiptOfGroups, IsRefused) {
  EXPECT_THAT([] { (void)make_receipt(ledger(groups_of(2)), Delta(1e-6), Epsilon(3)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("got one with 2 groups of units")));
}

}  // namespace
}  // namespace ghostshard::accountant
