#include "accountant/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "accountant/accountant.h"

namespace ghostshard::accountant {
namespace {

struct Form {
  const char* name;
  Event event;
  const char* json;
};

void PrintTo(const Form& c, std::ostream* out) { *out << c.name; }

class EventJson : public testing::TestWithParam<Form> {};

TEST_P(EventJson, IsTheDocumentedText) { EXPECT_EQ(to_json(GetParam().event).dump(), GetParam().json); }

TEST_P(EventJson, ReadsBackToTheSameBits) {
  EXPECT_EQ(event_from_json(nlohmann::json::parse(GetParam().json)), GetParam().event);
}

INSTANTIATE_TEST_SUITE_P(
    Events, EventJson,
    testing::Values(
        Form{"Gaussian", GaussianEvent{NoiseMultiplier(1.5)}, R"({"noise_multiplier":1.5,"type":"gaussian"})"},
        Form{"PoissonGaussian", PoissonGaussianEvent{SamplingRate(0.25), NoiseMultiplier(0.5)},
             R"({"noise_multiplier":0.5,"sampling_rate":0.25,"type":"poisson_gaussian"})"},
        Form{"FixedSize", FixedSizeGaussianEvent{100, 10, NoiseMultiplier(2)},
             R"({"batch":10,"noise_multiplier":2.0,"type":"fixed_size_gaussian","units":100})"},
        Form{
            "TruncatedPoisson", TruncatedPoissonGaussianEvent{100, SamplingRate(0.5), 60, NoiseMultiplier(2)},
            R"({"cap":60,"noise_multiplier":2.0,"sampling_rate":0.5,"type":"truncated_poisson_gaussian","units":100})"},
        Form{"AdaptiveClipping", AdaptiveClippingEvent{SamplingRate(0.5), NoiseMultiplier(2), NoiseMultiplier(10)},
             R"({"count_noise":10.0,"noise_multiplier":2.0,"sampling_rate":0.5,"type":"poisson_adaptive_clipping"})"},
        Form{"Laplace", LaplaceEvent{SamplingRate(1), NoiseMultiplier(2)},
             R"({"noise_multiplier":2.0,"sampling_rate":1.0,"type":"laplace"})"},
        Form{"DiscreteLaplace", DiscreteLaplaceEvent{SamplingRate(1), NoiseParameter(0.5), 3},
             R"({"noise_parameter":0.5,"sampling_rate":1.0,"sensitivity":3,"type":"discrete_laplace"})"},
        Form{"DiscreteGaussian", DiscreteGaussianEvent{SamplingRate(0.5), NoiseMultiplier(2), 1},
             R"({"sampling_rate":0.5,"sensitivity":1,"standard_deviation":2.0,"type":"discrete_gaussian"})"},
        Form{"Exponential", ExponentialMechanismEvent{Epsilon(1)}, R"({"epsilon":1.0,"type":"exponential_mechanism"})"},
        Form{"EpsilonDelta", EpsilonDeltaEvent{Epsilon(1), Probability(0.25)},
             R"({"delta":0.25,"epsilon":1.0,"type":"epsilon_delta"})"},
        Form{"Zcdp", ZcdpEvent{Rho(0.5), Rho(0)}, R"({"rho":0.5,"type":"zcdp","xi":0.0})"},
        Form{"Group", GroupPoissonGaussianEvent{4, SamplingRate(0.5), NoiseMultiplier(2)},
             R"({"group":4,"noise_multiplier":2.0,"sampling_rate":0.5,"type":"group_poisson_gaussian"})"},
        Form{"Mixture", MixtureOfGaussiansEvent{NoiseMultiplier(2), {0, 1}, {0.5, 0.5}},
             R"({"probabilities":[0.5,0.5],"sensitivities":[0.0,1.0],"standard_deviation":2.0,)"
             R"("type":"mixture_of_gaussians"})"},
        Form{"Tree", TreeAggregationEvent{8, NoiseMultiplier(2)},
             R"({"noise_multiplier":2.0,"steps":8,"type":"tree_aggregation"})"},
        Form{"BallsInBins", BallsInBinsGaussianEvent{8, NoiseMultiplier(2)},
             R"({"noise_multiplier":2.0,"steps":8,"type":"balls_in_bins_gaussian"})"},
        Form{"LossTable", LossTableEvent{{0.5, -1}, {0.5, 0.25}, Probability(0.25)},
             R"({"infinite":0.25,"losses":[0.5,-1.0],"probabilities":[0.5,0.25],"type":"loss_table"})"},
        Form{"TuningNegativeBinomial",
             TuningNegativeBinomialEvent{RepeatShape(1), RepeatGamma(0.25), {{GaussianEvent{NoiseMultiplier(2)}, 3}}},
             R"({"gamma":0.25,"run":[{"count":3,"event":{"noise_multiplier":2.0,"type":"gaussian"}}],"shape":1.0,)"
             R"("type":"tuning_negative_binomial"})"},
        Form{"TuningPoisson", TuningPoissonEvent{RepeatMean(8), {{GaussianEvent{NoiseMultiplier(2)}, 3}}},
             R"({"mean":8.0,"run":[{"count":3,"event":{"noise_multiplier":2.0,"type":"gaussian"}}],)"
             R"("type":"tuning_poisson"})"},
        Form{
            "ValuesWithoutAShortDecimal", PoissonGaussianEvent{SamplingRate(256.0 / 60000), NoiseMultiplier(1.0 / 3)},
            R"({"noise_multiplier":0.3333333333333333,"sampling_rate":0.004266666666666667,"type":"poisson_gaussian"})"}),
    [](const auto& c) { return c.param.name; });

struct Refused {
  const char* name;
  const char* json;
  const char* message;
};

void PrintTo(const Refused& c, std::ostream* out) { *out << c.name; }

class EventFromJsonRefuses : public testing::TestWithParam<Refused> {};

TEST_P(EventFromJsonRefuses, AndSaysWhatMustHold) {
  try {
    (void)event_from_json(nlohmann::json::parse(GetParam().json));
    FAIL() << "was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Json, EventFromJsonRefuses,
    testing::Values(
        Refused{"NoObject", R"([1])", "must be an object with a text \"type\""},
        Refused{"NoType", R"({"noise_multiplier":1})", "must be an object with a text \"type\""},
        Refused{"UnknownType", R"({"type":"cauchy","noise_multiplier":1})",
                "must be one of gaussian, poisson_gaussian, fixed_size_gaussian, truncated_poisson_gaussian, "
                "poisson_adaptive_clipping, laplace, "},
        Refused{"NoSampling", R"({"type":"laplace","noise_multiplier":1})",
                "exactly the keys type, sampling_rate, noise_multiplier"},
        Refused{"TableOfTwoLengths", R"({"type":"loss_table","losses":[1],"probabilities":[0.5,0.5],"infinite":0})",
                "must be as many"},
        Refused{"TableThatDoesNotAddUp",
                R"({"type":"loss_table","losses":[1,-1],"probabilities":[0.5,0.1],"infinite":0})",
                "must add up to 1, got 0.6"},
        Refused{"TableThatAlmostAddsUp",
                R"({"type":"loss_table","losses":[1,-1],"probabilities":[0.9,0.1000001],"infinite":0})",
                "must add up to 1, got 1.0000001"},
        Refused{"TableOfTheOtherNeighbour",
                R"({"type":"loss_table","losses":[-1,1],"probabilities":[0.8,0.2],"infinite":0})",
                "must add up to at most 1, got 2.2"},
        Refused{"TableWithText", R"({"type":"loss_table","losses":["a"],"probabilities":[1],"infinite":0})",
                "losses must be a number, got \"a\""},
        Refused{"NegativeSensitivity",
                R"({"type":"mixture_of_gaussians","standard_deviation":1,"sensitivities":[-1],"probabilities":[1]})",
                "sensitivities must be >= 0"},
        Refused{"GroupOfNone",
                R"({"type":"group_poisson_gaussian","group":0,"sampling_rate":0.5,"noise_multiplier":1})",
                "group must be >= 1, got 0"},
        Refused{"DeltaAboveOne", R"({"type":"epsilon_delta","epsilon":1,"delta":2})",
                "probability must lie between 0 and 1, got 2"},
        Refused{"MissingRate", R"({"type":"poisson_gaussian","noise_multiplier":1})",
                "exactly the keys type, sampling_rate, noise_multiplier"},
        Refused{"RateOnAGaussian", R"({"type":"gaussian","noise_multiplier":1,"sampling_rate":0.1})",
                "exactly the keys type, noise_multiplier"},
        Refused{"NullForANumber", R"({"type":"gaussian","noise_multiplier":null})",
                "noise_multiplier must be a number, got null"},
        Refused{"ZeroNoise", R"({"type":"gaussian","noise_multiplier":0})",
                "noise multiplier must be finite and > 0, got 0"},
        Refused{"BatchAboveUnits", R"({"type":"fixed_size_gaussian","noise_multiplier":1,"units":5,"batch":6})",
                "batch must be >= 1 and at most units (5), got 6"},
        Refused{"CapOfNone",
                R"({"type":"truncated_poisson_gaussian","noise_multiplier":1,"units":5,"cap":0,"sampling_rate":0.5})",
                "cap must be >= 1 and at most units (5), got 0"},
        Refused{"FractionOfUnits", R"({"type":"fixed_size_gaussian","noise_multiplier":1,"units":5.5,"batch":2})",
                "units must be a whole number, got 5.5"},
        Refused{"TuningOfNothing", R"({"type":"tuning_poisson","mean":8,"run":[]})", "run must have from 1"},
        Refused{"TuningOfTuning",
                R"({"type":"tuning_poisson","mean":8,"run":[{"count":1,"event":{"type":"tuning_poisson","mean":8,)"
                R"("run":[{"count":1,"event":{"type":"gaussian","noise_multiplier":1}}]}}]})",
                "must not be tuning itself"},
        Refused{"TuningOfNoCount",
                R"({"type":"tuning_poisson","mean":8,"run":[{"event":{"type":"gaussian","noise_multiplier":1}}]})",
                "a list of {event, count}"},
        Refused{
            "TuningZeroTimes",
            R"({"type":"tuning_poisson","mean":8,"run":[{"count":0,"event":{"type":"gaussian","noise_multiplier":1}}]})",
            "count must be >= 1"},
        Refused{"TuningWithoutEnd", R"({"type":"tuning_negative_binomial","shape":1,"gamma":0,"run":[]})",
                "gamma must lie strictly between 0 and 1"},
        Refused{"RateAboveOne", R"({"type":"poisson_gaussian","noise_multiplier":1,"sampling_rate":2})",
                "sampling rate must be > 0 and <= 1, got 2"}),
    [](const auto& c) { return c.param.name; });

TEST(RefusedEvent, BatchesOfOneSizeSayUnderWhichAdjacencyTheyAreBounded) {
  const Event event = FixedSizeGaussianEvent{100, 10, NoiseMultiplier(1)};
  for (const auto* engine : {"contour", "prv", "rdp"}) {
    SCOPED_TRACE(engine);
    make_accountant(engine, Adjacency::kReplaceOne)->compose(event, 5);
    try {
      make_accountant(engine, Adjacency::kZeroOut)->compose(event, 5);
      FAIL() << "was accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(
          error.what(),
          testing::HasSubstr(
              "zero-out adjacency, got fixed_size_gaussian: batches of one size are bounded under replace-one"));
    }
  }
}

TEST(Adjacency, NamesReadBack) {
  EXPECT_EQ(adjacency_from_string(to_string(Adjacency::kZeroOut)), Adjacency::kZeroOut);
  EXPECT_EQ(adjacency_from_string(to_string(Adjacency::kAddOrRemove)), Adjacency::kAddOrRemove);
  EXPECT_EQ(adjacency_from_string(to_string(Adjacency::kReplaceOne)), Adjacency::kReplaceOne);
}

TEST(Adjacency, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT([] { (void)adjacency_from_string("replace-all"); },
              testing::ThrowsMessage<std::invalid_argument>(
                  "adjacency must be one of zero-out, add-or-remove, replace-one; got \"replace-all\""));
}

}  // namespace
}  // namespace ghostshard::accountant
