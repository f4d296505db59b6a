// Reading is strict: a key too many or an unknown type means that the writer knew something that this reader
// does not, and accounting it as something else could under-count.
#include "accountant/events.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

constexpr const char* kGaussian = "gaussian";
constexpr const char* kPoissonGaussian = "poisson_gaussian";

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

}  // namespace

std::string to_string(Adjacency adjacency) {
  switch (adjacency) {
    case Adjacency::kZeroOut:
      return "zero-out";
    case Adjacency::kAddOrRemove:
      return "add-or-remove";
  }
  throw std::invalid_argument("adjacency must be one of zero-out, add-or-remove; got number " +
                              std::to_string(static_cast<int>(adjacency)));
}

Adjacency adjacency_from_string(const std::string& text) {
  if (text == "zero-out") return Adjacency::kZeroOut;
  if (text == "add-or-remove") return Adjacency::kAddOrRemove;
  throw std::invalid_argument("adjacency must be one of zero-out, add-or-remove; got \"" + text + '"');
}

nlohmann::json to_json(const Event& event) {
  if (const auto* gaussian = std::get_if<GaussianEvent>(&event))
    return {{"type", kGaussian}, {"noise_multiplier", gaussian->sigma.value()}};
  const auto& sampled = std::get<PoissonGaussianEvent>(event);
  return {
      {"type", kPoissonGaussian}, {"sampling_rate", sampled.q.value()}, {"noise_multiplier", sampled.sigma.value()}};
}

Event event_from_json(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("type") || !json.at("type").is_string())
    throw std::invalid_argument("event must be an object with a text \"type\", got " + json.dump());
  const auto type = json.at("type").get<std::string>();
  if (type == kGaussian) {
    require_keys(json, {"type", "noise_multiplier"});
    return GaussianEvent{NoiseMultiplier(number(json, "noise_multiplier"))};
  }
  if (type == kPoissonGaussian) {
    require_keys(json, {"type", "sampling_rate", "noise_multiplier"});
    return PoissonGaussianEvent{SamplingRate(number(json, "sampling_rate")),
                                NoiseMultiplier(number(json, "noise_multiplier"))};
  }
  throw std::invalid_argument("event type must be one of gaussian, poisson_gaussian; got \"" + type + '"');
}

}  // namespace ghostshard::accountant
