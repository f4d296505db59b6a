// The Rényi moment of any one event, certified from above: what Rényi accounting adds up, and what tuning starts from.
#pragma once

#include "accountant/events.h"

namespace ghostshard::accountant {

// c·RDP(1 + c), the larger of both directions. Of an event whose losses are a table: of the finite ones, and whoever
// composes takes infinite_loss off delta. Never below the exact value; +infinity if it exceeds a double. c > 0. Throws
// std::invalid_argument, naming the engine "rdp", for an event that no pair of ours dominates under this adjacency.
double event_log_moment(const Event& event, double c, Adjacency adjacency);

// The probability of an infinite loss in one execution, which no moment bounds.
double infinite_loss(const Event& event, Adjacency adjacency);

// epsilon or log delta that a log-moment k = (alpha-1)·RDP gives, alpha = 1 + c (Canonne, Kamath, Steinke 2020,
// arXiv:2004.00010, Prop. 12), rounded up.
double epsilon_of_moment(double c, double k, double log_delta);
double log_delta_of_moment(double c, double k, double epsilon);

}  // namespace ghostshard::accountant
