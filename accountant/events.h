// Events: the releases of one step, in terms that an accountant can bound. Names follow dp_accounting's DpEvent.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <variant>

#include <nlohmann/json_fwd.hpp>

#include "accountant/types.h"

namespace ghostshard::accountant {

// Which data sets count as neighbours.
//   zero-out       one unit's record is replaced by one that contributes nothing; n is public. The numbers of the
//                  Poisson-sampled Gaussian are the same as under add-or-remove.
//   add-or-remove  one data set is the other with one unit added or removed.
//   replace-one    one unit's record is replaced by any other; n is public.
enum class Adjacency { kZeroOut, kAddOrRemove, kReplaceOne };
std::string to_string(Adjacency adjacency);                // "zero-out", "add-or-remove", "replace-one"
Adjacency adjacency_from_string(const std::string& text);  // std::invalid_argument listing the known ones

// A sum to which each unit contributes at most norm S, released with noise N(0, (sigma·S)²) per coordinate. Under
// replace-one two such contributions differ by up to 2·S.
struct GaussianEvent {
  NoiseMultiplier sigma;
  bool operator==(const GaussianEvent&) const = default;
};

// The same sum over a Poisson sample: each unit is included independently with probability q.
struct PoissonGaussianEvent {
  SamplingRate q;
  NoiseMultiplier sigma;
  bool operator==(const PoissonGaussianEvent&) const = default;
};

// The same sum over exactly `batch` of `units` units, drawn uniformly without replacement. 1 <= batch <= units.
struct FixedSizeGaussianEvent {
  int64_t units;
  int64_t batch;
  NoiseMultiplier sigma;
  bool operator==(const FixedSizeGaussianEvent&) const = default;
};

// The same sum over a Poisson sample of at most `cap` units: if more are drawn, a uniformly chosen subset of `cap` of
// them is kept (arXiv:2508.15089). 1 <= cap <= units.
struct TruncatedPoissonGaussianEvent {
  int64_t units;
  SamplingRate q;
  int64_t cap;
  NoiseMultiplier sigma;
  bool operator==(const TruncatedPoissonGaussianEvent&) const = default;
};

// A step of adaptive clipping (Andrew et al. 2021, arXiv:1905.03871, Thm. 1). It releases two numbers about one Poisson
// sample: the sum of clipped gradients with noise sigma·S, and the centred count Σ(b_u - 1/2) with noise
// N(0, count_sigma²), count_sigma in counts. b_u is 1 if unit u's norm was below the clip norm, else 0. A unit moves
// the pair by 1/sigma and 1/(2·count_sigma) standard deviations. So the pair is one Gaussian with the noise multiplier
// (sigma^-2 + (2·count_sigma)^-2)^(-1/2).
struct AdaptiveClippingEvent {
  SamplingRate q;
  NoiseMultiplier sigma;
  NoiseMultiplier count_sigma;
  bool operator==(const AdaptiveClippingEvent&) const = default;
};

using Event = std::variant<GaussianEvent, PoissonGaussianEvent, FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent,
                           AdaptiveClippingEvent>;

// {"type":"gaussian","noise_multiplier":s}
// {"type":"poisson_gaussian","sampling_rate":q,"noise_multiplier":s}
// {"type":"fixed_size_gaussian","units":n,"batch":b,"noise_multiplier":s}
// {"type":"truncated_poisson_gaussian","units":n,"sampling_rate":q,"cap":b,"noise_multiplier":s}
// {"type":"poisson_adaptive_clipping","sampling_rate":q,"noise_multiplier":s,"count_noise":s_b}
// event_from_json throws std::invalid_argument with the rule that is broken; an unknown type is an error, never a
// guess. to_json throws if require_valid does.
nlohmann::json to_json(const Event& event);
Event event_from_json(const nlohmann::json& json);

// The kind and all numbers of an event, in an order: equal if and only if the events are.
using EventKey = std::tuple<size_t, double, double, double, int64_t, int64_t>;
EventKey key_of(const Event& event);

std::string type_name(const Event& event);    // "gaussian", …
double noise_multiplier(const Event& event);  // of the gradient release
// Throws std::invalid_argument unless 1 <= batch <= units and 1 <= cap <= units, for the events that have them.
void require_valid(const Event& event);

}  // namespace ghostshard::accountant
