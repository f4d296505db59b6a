// Whose coins fall for a step: Poisson sampling, from a run's key alone.
//
// The step's coin key gives one 64-bit coin per unit. A unit is drawn if its coin is below floor(q·2^64), so the true
// probability is never above q. A coin's 16 leading bits and its 48 others stand in two streams of the key: the others
// are computed only where the leading ones leave the question open, for one unit in 65,536, so that a coin costs 2
// bytes of keystream.
//
// Whoever has the key tosses the same coins: a rank, the C++ program, or the Python loader. Nothing here charges for
// what it draws: DpPlan's sampler (dp/mechanism/sampler.h) is the one that cannot be charged wrongly; the Python loader
// stamps every draw (bindings/python/ghostshard/loaders/stamps.py).
#pragma once

#include <cstdint>
#include <vector>

#include "accountant/types.h"
#include "dp/mechanism/run_key.h"

namespace ghostshard::dp {

// The coins that fall: all of them, or those below a threshold.
class CoinBound {
 public:
  // q = batch/units: floor(batch·2^64/units). 1 ≤ batch ≤ units.
  static CoinBound of_batch(int64_t batch, int64_t units);
  // floor(q·2^64).
  static CoinBound of_rate(accountant::SamplingRate rate);

  bool everything() const { return everything_; }  // q = 1
  uint64_t threshold() const { return threshold_; }

 private:
  CoinBound(bool everything, uint64_t threshold) : everything_(everything), threshold_(threshold) {}
  bool everything_;
  uint64_t threshold_;
};

// Of the units first ≤ u < end, those that the step draws, ascending.
std::vector<int64_t> drawn_units(const RunKey& key, const StepId& step, int64_t first, int64_t end,
                                 const CoinBound& bound);

}  // namespace ghostshard::dp
