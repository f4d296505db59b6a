#include "dp/mechanism/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ghostshard::dp {
namespace {

// The parts of all ranks, in the order of ranks. A collective.
std::vector<int64_t> joined(const std::vector<int64_t>& part, fsdp::Mesh& mesh) {
  const int64_t ranks = mesh.world_size();
  const at::Tensor counts = at::empty({ranks}, at::kLong);
  mesh.control().all_gather(counts, at::full({1}, static_cast<int64_t>(part.size()), at::kLong))->wait();
  const int64_t most = counts.max().item<int64_t>();
  const at::Tensor mine = at::zeros({most}, at::kLong), all = at::empty({ranks * most}, at::kLong);
  std::copy(part.begin(), part.end(), mine.data_ptr<int64_t>());
  if (most > 0) mesh.control().all_gather(all, mine)->wait();
  std::vector<int64_t> batch;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t* const of_rank = all.const_data_ptr<int64_t>() + rank * most;
    batch.insert(batch.end(), of_rank, of_rank + counts.const_data_ptr<int64_t>()[rank]);
  }
  return batch;
}

}  // namespace

PoissonSampler::PoissonSampler(const RunKey& key, int64_t units, int64_t expected_batch, int64_t rank,
                               int64_t world_size, int64_t groups, const std::optional<Truncation>& truncation)
    : key_(&key),
      units_(units),
      rank_(rank),
      world_size_(world_size),
      groups_(groups),
      truncation_(truncation),
      bound_(truncation ? CoinBound::of_rate(truncation->rate)
                        : CoinBound::of_batch(std::min(expected_batch * groups, units), units)) {}

std::vector<int64_t> PoissonSampler::draw(const StepId& step) const { return kept(draw_part(step, 0, units_), step); }

std::vector<int64_t> PoissonSampler::kept(std::vector<int64_t> drawn, const StepId& step) const {
  return truncation_ ? truncated(std::move(drawn), truncation_->cap, *key_, step) : drawn;
}

std::vector<int64_t> PoissonSampler::draw_part(const StepId& step, int64_t first, int64_t end) const {
  if (passes_) return passes_->units_of(*key_, step, first, end);
  // Coins are numbered within the group: its unit j·b + group has coin j.
  const int64_t group = step.step % groups_;
  const auto below = [&](int64_t unit) { return unit <= group ? 0 : (unit - group - 1) / groups_ + 1; };
  std::vector<int64_t> drawn = drawn_units(*key_, step, below(first), below(end), bound_);
  for (int64_t& unit : drawn) unit = unit * groups_ + group;
  return drawn;
}

std::vector<int64_t> PoissonSampler::draw_together(const StepId& step, fsdp::Mesh& mesh, int64_t few) const {
  const int64_t ranks = mesh.world_size();
  if (ranks == 1 || units_ <= few) return draw(step);
  const int64_t share = (units_ + ranks - 1) / ranks;
  const int64_t first = std::min(units_, mesh.rank() * share);
  return kept(joined(draw_part(step, first, std::min(units_, first + share)), mesh), step);
}

Microbatches deal(std::vector<int64_t> batch, int64_t microbatch, std::span<const int64_t> lengths, int64_t rank,
                  int64_t world_size, int64_t as_for) {
  if (!(microbatch >= 1)) throw std::invalid_argument("microbatch must be >= 1, got " + std::to_string(microbatch));
  if (!lengths.empty()) {
    std::stable_sort(batch.begin(), batch.end(), [&](int64_t a, int64_t b) {
      return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
    });
  }
  // Boustrophedon: ranks from 0 to W−1, then from W−1 to 0, so that no rank always gets the longer of a pair.
  std::vector<int64_t> mine;
  const auto total = static_cast<int64_t>(batch.size());
  for (int64_t i = 0; i < total; ++i) {
    const int64_t lap = i / world_size;
    const int64_t place = i % world_size;
    if ((lap % 2 == 0 ? place : world_size - 1 - place) == rank) mine.push_back(batch[static_cast<size_t>(i)]);
  }
  const int64_t most = (std::max(total, as_for) + world_size - 1) / world_size;  // the busiest rank's units
  const int64_t count = (most + microbatch - 1) / microbatch;
  // Even cuts: with 17 units and at most 16 at a time, 9 and 8 rather than 16 and 1.
  Microbatches cut(static_cast<size_t>(count));
  const auto size = static_cast<int64_t>(mine.size());
  for (int64_t m = 0; m < count; ++m) {
    cut[static_cast<size_t>(m)].assign(mine.begin() + size * m / count, mine.begin() + size * (m + 1) / count);
  }
  return cut;
}

Microbatches PoissonSampler::deal_local(std::vector<int64_t> batch, int64_t microbatch,
                                        std::span<const int64_t> lengths) const {
  if (!lengths.empty() && static_cast<int64_t>(lengths.size()) != units_) {
    throw std::invalid_argument("lengths must be empty or one per unit: " + std::to_string(units_) + " units, " +
                                std::to_string(lengths.size()) + " lengths");
  }
  return deal(std::move(batch), microbatch, lengths, rank_, world_size_, truncation_ ? truncation_->cap : 0);
}

Microbatches PoissonSampler::draw_local(const StepId& step, int64_t microbatch,
                                        std::span<const int64_t> lengths) const {
  return deal_local(draw(step), microbatch, lengths);
}

}  // namespace ghostshard::dp
