// A run in zero-concentrated differential privacy (Bun, Steinke 2016, arXiv:1605.02065): for readers who go on in rho.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "accountant/events.h"

namespace ghostshard::accountant {

// The run's Rényi divergence of order alpha is at most xi + rho·alpha for all 1 < alpha < omega. omega infinite: zCDP;
// else truncated CDP (Bun, Dwork, Rothblum, Steinke 2018, STOC, Def. 1), in which a sampled release costs less.
struct ConcentratedBound {
  double rho = 0;
  double xi = 0;  // of releases that are stated with one
  double omega = std::numeric_limits<double>::infinity();
  std::string detail;
};

// Without omega each release has its closed form; sampling is not counted (by convexity a sampled release costs at most
// what it costs unsampled). With omega > 1, the least rho that the moments of all releases allow there, to 1e-5 of
// itself from above, or the closed form if that is less. Throws std::invalid_argument for a release of which no rho is
// known, and for omega <= 1 or infinite.
ConcentratedBound concentrated_bound(std::span<const std::pair<Event, int64_t>> run, Adjacency adjacency,
                                     std::optional<double> omega = std::nullopt);

}  // namespace ghostshard::accountant
