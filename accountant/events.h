// What one step released, in the terms an accountant can bound. Names follow dp_accounting's DpEvent.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include <nlohmann/json_fwd.hpp>

#include "accountant/types.h"

namespace ghostshard::accountant {

// Which data sets count as neighbours. Zero-out: one unit's record is replaced by one that contributes
// nothing, n is public; for the Poisson-sampled Gaussian its numbers are those of add-or-remove.
enum class Adjacency { kZeroOut, kAddOrRemove };
std::string to_string(Adjacency adjacency);                // "zero-out", "add-or-remove"
Adjacency adjacency_from_string(const std::string& text);  // std::invalid_argument listing the known ones

// A sum of L2 sensitivity S released with noise N(0, (sigma·S)²) per coordinate.
struct GaussianEvent {
  NoiseMultiplier sigma;
  bool operator==(const GaussianEvent&) const = default;
};

// The same after each unit was included independently with probability q.
struct PoissonGaussianEvent {
  SamplingRate q;
  NoiseMultiplier sigma;
  bool operator==(const PoissonGaussianEvent&) const = default;
};

using Event = std::variant<GaussianEvent, PoissonGaussianEvent>;

// {"type":"gaussian","noise_multiplier":s} /
// {"type":"poisson_gaussian","sampling_rate":q,"noise_multiplier":s}. event_from_json throws
// std::invalid_argument naming what must hold: an unknown type is an error, never a guess.
nlohmann::json to_json(const Event& event);
Event event_from_json(const nlohmann::json& json);

}  // namespace ghostshard::accountant
