// Balls-in-bins sampling (arXiv:2412.16802): in each pass over the data every unit is in exactly one of the pass's t
// steps (its "bins"), uniformly random and independent of all other units and passes.
//
// A pass is a release of its own, charged whole before its first step (accountant/events.h): a step of it shows which
// units the other steps hold. So no step of a pass may be released a second time, under new noise, on the same units:
// what a unit moves would be seen with less noise than was charged. A step that is repeated begins another pass. A
// session, which a crash or a stop began, never goes on with the pass of an earlier one: its first step is the first of
// a new pass, with units dealt anew (run ids differ, dp/mechanism/run_key.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/mechanism/run_key.h"

namespace ghostshard::dp {

// How the units of a step are chosen.
enum class Sampling { kPoisson, kBallsInBins };
std::string to_string(Sampling sampling);                // "poisson", "balls-in-bins"
Sampling sampling_from_string(const std::string& text);  // std::invalid_argument listing the known ones

// The passes of one session.
struct BinPasses {
  int64_t steps = 1;  // t of a pass: n/B rounded up, so that a bin holds no more than B units on average
  int64_t first = 0;  // step of the session, which begins a pass

  static int64_t steps_of(int64_t units, int64_t expected_batch) {
    return (units + expected_batch - 1) / expected_batch;
  }

  // The pass that a step belongs to, by its first step; all its steps have one attempt. std::invalid_argument for a
  // step before the session's first.
  StepId pass_of(const StepId& step) const;
  bool begins_pass(int64_t step) const { return pass_of({.step = step}).step == step; }

  // Of the units first ≤ u < end, those in this step's bin, ascending. A unit's bin follows from the key, the run id,
  // the pass and the unit alone: exactly uniform, as the key's words are. O(end - first).
  std::vector<int64_t> units_of(const RunKey& key, const StepId& step, int64_t first, int64_t end) const;
};

}  // namespace ghostshard::dp
