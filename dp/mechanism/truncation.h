// Truncated Poisson sampling (arXiv:2508.15089): of the units that a step's coins drew, at most `cap` stay.
//
// If more were drawn, those that stay are a subset of exactly `cap`, each such subset with the same probability,
// whatever the units are: the first steps of Fisher's and Yates' shuffle (Durstenfeld, CACM 7(7), 1964) choose those
// that go. Its words are those of a subkey with a purpose of its own beside step and attempt, so they are independent
// of the coins. A word that would favour some places is passed over, so no choice is likelier than another.
//
// A unit's content is never looked at. An empty record that was drawn takes a place like any other, as the event of
// zero-out assumes (accountant/gaussian/truncated_poisson.h). Whoever knows the whole draw makes the same choice, so
// the batch is the same on any number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "accountant/types.h"
#include "dp/mechanism/run_key.h"

namespace ghostshard::dp {

struct Truncation {
  int64_t cap;                    // ≥ 1
  accountant::SamplingRate rate;  // of the coins: one that coin_rate() gives
};

// drawn: the step's whole draw, ascending. Those that stay, ascending: all of them unless they are more than cap.
// std::invalid_argument unless cap ≥ 1. O(drawn).
std::vector<int64_t> truncated(std::vector<int64_t> drawn, int64_t cap, const RunKey& key, const StepId& step);

// The largest rate up to q that 64-bit coins have exactly: floor(q·2^64)/2^64, which is a double. What truncation costs
// is not proven to grow with the rate, so the coins' own rate is accounted. std::invalid_argument if it is 0.
accountant::SamplingRate coin_rate(accountant::SamplingRate q);

}  // namespace ghostshard::dp
