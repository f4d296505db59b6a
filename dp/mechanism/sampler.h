// Poisson sampling, as it is accounted: every unit is in a logical batch independently with probability q.
//
// With groups (cyclic Poisson sampling, arXiv:2306.08153, section 4) unit u belongs to group u mod b for the whole run,
// and step t draws from group t mod b alone, each of its units with probability q = B·b/n: a unit's steps are b apart.
//
// With noise from buffers (dp/mechanism/noise_blt.h) there are as many groups as steps in a pass over the data, and the
// whole of a group is drawn: q = 1, no coin decides.
//
// With passes (dp/mechanism/bins.h) a step draws its bin of the pass instead.
// With a largest batch (dp/mechanism/truncation.h) a uniformly random part of a larger draw stays. Every rank then has
// as many microbatches in every step as the largest batch takes, some with fewer units or none.
//
// Coins are those of dp/mechanism/coins.h. Every rank knows the whole batch, hence the number of microbatches on each
// rank; of many units each rank tosses the coins of its own part and hears of the others'. The units in a batch, and
// their number, are secret.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dp/mechanism/bins.h"
#include "dp/mechanism/coins.h"
#include "dp/mechanism/run_key.h"
#include "dp/mechanism/truncation.h"
#include "fsdp/mesh.h"

namespace ghostshard::dp {

// One rank's share of a logical batch: the same number of microbatches on every rank, some possibly empty.
using Microbatches = std::vector<std::vector<int64_t>>;

class PoissonSampler {
 public:
  static constexpr int64_t kFewUnits = int64_t{1} << 22;  // their coins take as long as two small collectives

  // All units of the step's logical batch, ascending. O(units).
  std::vector<int64_t> draw(const StepId& step) const;
  // Those among the units first ≤ u < end whose coins fall, before any of them is left out for the largest batch.
  std::vector<int64_t> draw_part(const StepId& step, int64_t first, int64_t end) const;
  // The same as draw() in O(units / ranks + batch): a collective of all ranks of the mesh. Few units are not worth it,
  // each rank then tosses all coins.
  std::vector<int64_t> draw_together(const StepId& step, fsdp::Mesh& mesh, int64_t few = kFewUnits) const;

  // This rank's share of a batch that draw() gave, at most `microbatch` units at a time. lengths (empty, or one per
  // unit: rows it will take): units are dealt to ranks from longest to shortest, so that ranks have equal work and
  // microbatches equal lengths. Throws std::invalid_argument unless microbatch ≥ 1 and lengths fit.
  Microbatches deal_local(std::vector<int64_t> batch, int64_t microbatch, std::span<const int64_t> lengths) const;
  // draw(), then its deal.
  Microbatches draw_local(const StepId& step, int64_t microbatch, std::span<const int64_t> lengths) const;

  int64_t units() const { return units_; }

 private:
  friend class DpPlan;
  friend PoissonSampler nonprivate_sampler(const RunKey& key, int64_t units, int64_t expected_batch, int64_t rank,
                                           int64_t world_size);
  PoissonSampler(const RunKey& key, int64_t units, int64_t expected_batch, int64_t rank, int64_t world_size,
                 int64_t groups = 1, const std::optional<Truncation>& truncation = {});
  std::vector<int64_t> kept(std::vector<int64_t> drawn, const StepId& step) const;

  const RunKey* key_;
  int64_t units_;
  int64_t rank_;
  int64_t world_size_;
  int64_t groups_;
  std::optional<Truncation> truncation_;
  CoinBound bound_;
  std::optional<BinPasses> passes_;  // DpPlan sets them
};

// The dealing, apart from the coins: units of one logical batch to one rank's microbatches. Pure. as_for: at least as
// many microbatches as a batch of so many units takes.
Microbatches deal(std::vector<int64_t> batch, int64_t microbatch, std::span<const int64_t> lengths, int64_t rank,
                  int64_t world_size, int64_t as_for = 0);

}  // namespace ghostshard::dp
