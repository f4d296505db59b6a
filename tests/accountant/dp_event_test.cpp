#include "accountant/dp_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ghostshard::accountant {
namespace {

using Events = std::vector<std::pair<Event, int64_t>>;

TEST(DpAccountingEvents, ReadBackAsTheyWereWritten) {
  const SamplingRate q(0.25);
  const NoiseMultiplier s(1.5);
  const Events events = {{GaussianEvent{s}, 1},
                         {PoissonGaussianEvent{q, s}, 7},
                         {FixedSizeGaussianEvent{100, 10, s}, 2},
                         {TruncatedPoissonGaussianEvent{100, q, 30, s}, 1},
                         {LaplaceEvent{SamplingRate(1), s}, 1},
                         {LaplaceEvent{q, s}, 3},
                         {DiscreteLaplaceEvent{q, NoiseParameter(0.5), 2}, 1},
                         {ZcdpEvent{Rho(0.5), Rho(0)}, 1},
                         {MixtureOfGaussiansEvent{s, {0, 2}, {0.5, 0.5}}, 1},
                         {TreeAggregationEvent{100, s}, 1}};
  EXPECT_EQ(events_from_dp_accounting(to_dp_accounting(events)), events);
}

TEST(DpAccountingEvents, TwoGaussiansOfOneSampleAreOne) {
  const Events found = events_from_dp_accounting(
      to_dp_accounting({{AdaptiveClippingEvent{SamplingRate(0.5), NoiseMultiplier(3), NoiseMultiplier(2)}, 1}}));
  ASSERT_EQ(found.size(), 1U);
  const auto& one = std::get<PoissonGaussianEvent>(found.front().first);
  EXPECT_LE(one.sigma.value(), 2.4);  // 1/sqrt(1/9 + 1/16)
  EXPECT_NEAR(one.sigma.value(), 2.4, 1e-14);
}

TEST(DpAccountingEvents, CountsMultiply) {
  const auto json = nlohmann::json::parse(
      R"({"class_name":"SelfComposedDpEvent","count":3,"event":{"class_name":"SelfComposedDpEvent","count":5,
          "event":{"class_name":"GaussianDpEvent","noise_multiplier":2}}})");
  EXPECT_EQ(events_from_dp_accounting(json), (Events{{GaussianEvent{NoiseMultiplier(2)}, 15}}));
}

TEST(DpAccountingEvents, WhatIsNotKnownIsRefusedByName) {
  const auto refused = [](const char* text, const char* why) {
    EXPECT_THAT([&] { (void)events_from_dp_accounting(nlohmann::json::parse(text)); },
                testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr(why)))
        << text;
  };
  refused(R"({"class_name":"NonPrivateDpEvent"})", "got NonPrivateDpEvent");
  refused(R"({"class_name":"GaussianDpEvent","noise_multiplier":0})", "noise multiplier must be finite and > 0");
  refused(R"({"class_name":"GaussianDpEvent","noise_multiplier":1,"shift":2})", "does not know");
  refused(R"({"class_name":"GaussianDpEvent"})", "must have noise_multiplier");
  refused(R"({"noise_multiplier":1})", "class_name");
  refused(R"({"class_name":"PoissonSampledDpEvent","sampling_probability":0.5,"event":
             {"class_name":"SelfComposedDpEvent","count":2,"event":{"class_name":"LaplaceDpEvent","noise_multiplier":1}}})",
          "of one Laplace event");
  refused(R"({"class_name":"RepeatAndSelectDpEvent","mean":2,"shape":1,"event":{"class_name":"NoOpDpEvent"}})",
          "got RepeatAndSelectDpEvent");
}

TEST(DpAccountingEvents, AnEventWithoutAClassIsNotWritten) {
  EXPECT_THAT(
      [] {
        (void)to_dp_accounting({{ExponentialMechanismEvent{Epsilon(1)}, 1}});
      },
      testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("got exponential_mechanism")));
}

}  // namespace
}  // namespace ghostshard::accountant
