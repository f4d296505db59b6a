#include "accountant/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
        Refused{"UnknownType", R"({"type":"laplace","noise_multiplier":1})",
                "must be one of gaussian, poisson_gaussian, fixed_size_gaussian, truncated_poisson_gaussian, "
                "poisson_adaptive_clipping; got \"laplace\""},
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
        Refused{"RateAboveOne", R"({"type":"poisson_gaussian","noise_multiplier":1,"sampling_rate":2})",
                "sampling rate must be > 0 and <= 1, got 2"}),
    [](const auto& c) { return c.param.name; });

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
