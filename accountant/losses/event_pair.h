// The events whose losses are tables, and their tables.
#pragma once

#include <memory>

#include "accountant/events.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// Whether the event is bounded by a table under this adjacency. Gaussians are not, with Poisson sampling or without:
// they have engines of their own, but under replace-one a sampled Gaussian is
//   (1-q)·N(0, sigma²) + q·N(1, sigma²)  against  (1-q)·N(0, sigma²) + q·N(-1, sigma²).
// With p = (1-q)·N(0) + q·N(v), |v| <= 1, and p' likewise, delta is a mean over the batches without the unit, and by
// advanced joint convexity (Balle et al. 2018, arXiv:1807.01647, Thm. 2) q times that of N(v) against a mixture of N(0)
// and N(v'), of which |v| = 1 and v' = -v is the worst (normal_laws.cpp).
bool has_loss_table(const Event& event, Adjacency adjacency);

// Whether all that is known of it are Rényi moments: of a composition they may say less than tables, and nothing from
// below.
bool is_bounded_by_moments(const Event& event);

// Its table. Tables are kept: the same event gives the same object. Throws std::invalid_argument, naming engine, event
// and adjacency, if the event has none, as tuning
// has none here (gaussian/event_table.h).
std::shared_ptr<const DominatingPair> loss_table(const Event& event, Adjacency adjacency, const std::string& engine);

}  // namespace ghostshard::accountant
