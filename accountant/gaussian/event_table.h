// The table of any event that has one.
#pragma once

#include <memory>
#include <string>

#include "accountant/events.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// loss_table (losses/event_pair.h), and for tuning the table that its moments give: those rest on Gaussians' moments,
// which losses/ does not know. The same event gives the same object.
std::shared_ptr<const DominatingPair> event_table(const Event& event, Adjacency adjacency, const std::string& engine);

}  // namespace ghostshard::accountant
