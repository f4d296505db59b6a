// dp_accounting's events (https://github.com/google/differential-privacy, dp_accounting/dp_event.py) as JSON: an object
// with "class_name" (and "module_name", which is not looked at) and the fields of that class, as
// DpEvent.to_named_tuple() has them.
#pragma once

#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

// GaussianDpEvent, LaplaceDpEvent, DiscreteLaplaceDpEvent, PoissonSampledDpEvent of one of these or of several
// Gaussians on one sample, SampledWithoutReplacementDpEvent of a Gaussian, TruncatedSubsampledGaussianDpEvent,
// MixtureOfGaussiansDpEvent, ZCDpEvent, SingleEpochTreeAggregationDpEvent, and SelfComposedDpEvent, ComposedDpEvent and
// NoOpDpEvent of all these. Throws std::invalid_argument with name and reason for any other: what cannot be bounded is
// refused, not guessed.
std::vector<std::pair<Event, int64_t>> events_from_dp_accounting(const nlohmann::json& event);

// The way back: one ComposedDpEvent of SelfComposedDpEvents. Throws std::invalid_argument for an event that
// dp_accounting has no class for.
nlohmann::json to_dp_accounting(const std::vector<std::pair<Event, int64_t>>& events);

}  // namespace ghostshard::accountant
