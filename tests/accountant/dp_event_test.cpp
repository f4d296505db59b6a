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
                         {TreeAggregationEvent{100, s}, 1},
                         {TuningPoissonEvent{RepeatMean(8), {{PoissonGaussianEvent{q, s}, 7}}}, 1}};
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

// dp_accounting names the mean; gamma comes out on the side of more runs.
TEST(DpAccountingEvents, RepeatsKeepTheirMean) {
  for (const double shape : {-0.5, 0.0, 1.0, 7.0})
    for (const double gamma : {1e-5, 0.3, 0.99}) {
      const Event event =
          TuningNegativeBinomialEvent{RepeatShape(shape), RepeatGamma(gamma), {{GaussianEvent{NoiseMultiplier(2)}, 3}}};
      const Events found = events_from_dp_accounting(to_dp_accounting({{event, 1}}));
      ASSERT_EQ(found.size(), 1U);
      const auto& one = std::get<TuningNegativeBinomialEvent>(found.front().first);
      EXPECT_LT(one.gamma.value(), gamma) << shape;
      EXPECT_NEAR(one.gamma.value(), gamma, 1e-11 * gamma + 1e-11 * (gamma > 0.9)) << shape;
      EXPECT_EQ(one.run, (std::vector<TunedRelease>{{GaussianEvent{NoiseMultiplier(2)}, 3}}));
    }
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
          "run must have from 1");
  refused(R"({"class_name":"RepeatAndSelectDpEvent","mean":1,"shape":1,
             "event":{"class_name":"GaussianDpEvent","noise_multiplier":1}})",
          "mean must be > 1");
  refused(R"({"class_name":"WhatNobodyKnowsDpEvent"})", "got WhatNobodyKnowsDpEvent");
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
