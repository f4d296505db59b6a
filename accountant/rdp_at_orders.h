// Rényi accounting over a given list of orders, as Opacus does it: to compare with the numbers that Opacus reports.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "accountant/events.h"
#include "accountant/types.h"

namespace ghostshard::accountant {

// The default orders of Opacus: 1.1, 1.2, …, 10.9, 12, 13, …, 63. The accountant "rdp" searches all real orders, so it
// is never worse.
std::vector<double> opacus_orders();

// Epsilon of the composed events under zero-out adjacency, minimised over these orders. +infinity if no order gives a
// bound. Throws std::invalid_argument for an order <= 1, a negative count, a total of 2^63 or more, and an event that
// the accountant "rdp" refuses.
double rdp_epsilon_at_orders(std::span<const std::pair<Event, int64_t>> composed, std::span<const double> orders,
                             Delta delta);

}  // namespace ghostshard::accountant
