// Reading is strict: a key too many or an unknown type means that the writer knew something that this reader
// does not, and accounting it as something else could under-count.
#include "accountant/events.h"

#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

constexpr const char* kGaussian = "gaussian";
constexpr const char* kPoissonGaussian = "poisson_gaussian";
constexpr const char* kFixedSize = "fixed_size_gaussian";
constexpr const char* kTruncatedPoisson = "truncated_poisson_gaussian";
constexpr const char* kAdaptiveClipping = "poisson_adaptive_clipping";
constexpr const char* kKnownTypes =
    "gaussian, poisson_gaussian, fixed_size_gaussian, truncated_poisson_gaussian, poisson_adaptive_clipping";
constexpr const char* kKnownAdjacencies = "zero-out, add-or-remove, replace-one";

void require_keys(const nlohmann::json& json, std::initializer_list<const char*> keys) {
  std::string expected;
  for (const char* key : keys) expected += std::string(expected.empty() ? "" : ", ") + key;
  bool exact = json.size() == keys.size();
  for (const char* key : keys) exact = exact && json.contains(key);
  if (!exact) throw std::invalid_argument("event must have exactly the keys " + expected + ", got " + json.dump());
}

double number(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = json.at(key);
  if (!value.is_number())
    throw std::invalid_argument(std::string("event's ") + key + " must be a number, got " + value.dump());
  return value.get<double>();
}

NoiseMultiplier sigma(const nlohmann::json& json) { return NoiseMultiplier(number(json, "noise_multiplier")); }
SamplingRate rate(const nlohmann::json& json) { return SamplingRate(number(json, "sampling_rate")); }

int64_t count(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = json.at(key);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}))
    throw std::invalid_argument(std::string("event's ") + key + " must be a whole number, got " + value.dump());
  return value.get<int64_t>();
}

// 1 <= part <= units.
void require_part(const char* name, int64_t part, int64_t units) {
  if (!(units >= 1)) throw std::invalid_argument("units must be >= 1, got " + std::to_string(units));
  if (!(part >= 1 && part <= units))
    throw std::invalid_argument(std::string(name) + " must be >= 1 and at most units (" + std::to_string(units) +
                                "), got " + std::to_string(part));
}

}  // namespace

std::string to_string(Adjacency adjacency) {
  switch (adjacency) {
    case Adjacency::kZeroOut:
      return "zero-out";
    case Adjacency::kAddOrRemove:
      return "add-or-remove";
    case Adjacency::kReplaceOne:
      return "replace-one";
  }
  throw std::invalid_argument(std::string("adjacency must be one of ") + kKnownAdjacencies + "; got number " +
                              std::to_string(static_cast<int>(adjacency)));
}

Adjacency adjacency_from_string(const std::string& text) {
  if (text == "zero-out") return Adjacency::kZeroOut;
  if (text == "add-or-remove") return Adjacency::kAddOrRemove;
  if (text == "replace-one") return Adjacency::kReplaceOne;
  throw std::invalid_argument(std::string("adjacency must be one of ") + kKnownAdjacencies + "; got \"" + text + '"');
}

EventKey key_of(const Event& event) {
  struct Numbers {
    using Key = std::tuple<double, double, double, int64_t, int64_t>;
    Key operator()(const GaussianEvent& e) const { return {e.sigma.value(), 0, 0, 0, 0}; }
    Key operator()(const PoissonGaussianEvent& e) const { return {e.sigma.value(), e.q.value(), 0, 0, 0}; }
    Key operator()(const FixedSizeGaussianEvent& e) const { return {e.sigma.value(), 0, 0, e.units, e.batch}; }
    Key operator()(const TruncatedPoissonGaussianEvent& e) const {
      return {e.sigma.value(), e.q.value(), 0, e.units, e.cap};
    }
    Key operator()(const AdaptiveClippingEvent& e) const {
      return {e.sigma.value(), e.q.value(), e.count_sigma.value(), 0, 0};
    }
  };
  return std::tuple_cat(std::tuple(event.index()), std::visit(Numbers(), event));
}

std::string type_name(const Event& event) {
  struct Name {
    const char* operator()(const GaussianEvent&) const { return kGaussian; }
    const char* operator()(const PoissonGaussianEvent&) const { return kPoissonGaussian; }
    const char* operator()(const FixedSizeGaussianEvent&) const { return kFixedSize; }
    const char* operator()(const TruncatedPoissonGaussianEvent&) const { return kTruncatedPoisson; }
    const char* operator()(const AdaptiveClippingEvent&) const { return kAdaptiveClipping; }
  };
  return std::visit(Name(), event);
}

double noise_multiplier(const Event& event) {
  return std::visit([](const auto& any) { return any.sigma.value(); }, event);
}

void require_valid(const Event& event) {
  if (const auto* fixed = std::get_if<FixedSizeGaussianEvent>(&event))
    require_part("batch", fixed->batch, fixed->units);
  if (const auto* truncated = std::get_if<TruncatedPoissonGaussianEvent>(&event))
    require_part("cap", truncated->cap, truncated->units);
}

nlohmann::json to_json(const Event& event) {
  require_valid(event);
  nlohmann::json json = {{"type", type_name(event)}, {"noise_multiplier", noise_multiplier(event)}};
  if (const auto* sampled = std::get_if<PoissonGaussianEvent>(&event)) json["sampling_rate"] = sampled->q.value();
  if (const auto* fixed = std::get_if<FixedSizeGaussianEvent>(&event)) {
    json["units"] = fixed->units;
    json["batch"] = fixed->batch;
  }
  if (const auto* truncated = std::get_if<TruncatedPoissonGaussianEvent>(&event)) {
    json["units"] = truncated->units;
    json["sampling_rate"] = truncated->q.value();
    json["cap"] = truncated->cap;
  }
  if (const auto* adaptive = std::get_if<AdaptiveClippingEvent>(&event)) {
    json["sampling_rate"] = adaptive->q.value();
    json["count_noise"] = adaptive->count_sigma.value();
  }
  return json;
}

Event event_from_json(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("type") || !json.at("type").is_string())
    throw std::invalid_argument("event must be an object with a text \"type\", got " + json.dump());
  const auto type = json.at("type").get<std::string>();
  const auto checked = [](Event event) {
    require_valid(event);
    return event;
  };
  if (type == kGaussian) {
    require_keys(json, {"type", "noise_multiplier"});
    return GaussianEvent{sigma(json)};
  }
  if (type == kPoissonGaussian) {
    require_keys(json, {"type", "sampling_rate", "noise_multiplier"});
    return PoissonGaussianEvent{rate(json), sigma(json)};
  }
  if (type == kFixedSize) {
    require_keys(json, {"type", "units", "batch", "noise_multiplier"});
    return checked(FixedSizeGaussianEvent{count(json, "units"), count(json, "batch"), sigma(json)});
  }
  if (type == kTruncatedPoisson) {
    require_keys(json, {"type", "units", "sampling_rate", "cap", "noise_multiplier"});
    return checked(TruncatedPoissonGaussianEvent{count(json, "units"), rate(json), count(json, "cap"), sigma(json)});
  }
  if (type == kAdaptiveClipping) {
    require_keys(json, {"type", "sampling_rate", "noise_multiplier", "count_noise"});
    return AdaptiveClippingEvent{rate(json), sigma(json), NoiseMultiplier(number(json, "count_noise"))};
  }
  throw std::invalid_argument(std::string("event type must be one of ") + kKnownTypes + "; got \"" + type + '"');
}

}  // namespace ghostshard::accountant
