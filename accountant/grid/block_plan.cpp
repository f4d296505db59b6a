// How a run is cut into blocks, and which losses stay out of them (grid_blocks.h). Only the number of draws in all
// blocks is part of a proof: any plan gives bounds, and their errors are measured when they are made.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "accountant/grid/grid_blocks.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFewestSteps = 256;
constexpr double kFewestInBlock = 16;  // the losses of fewer are lumps, which merging puts together badly
// Phases of fewer steps go on the coarse grid: one of these, whichever is best.
constexpr std::array<double, 3> kFewestInBlocks = {64, 1024, 16384};
// Outside the fine window may lie e^-kOutside of the tilted measure of a block, which is taken off each of its masses,
// and e^-kBeyond of delta in all of them.
constexpr double kOutside = 36;
constexpr double kBeyond = 24;
constexpr size_t kFewestPoints = size_t{1} << 13;
constexpr double kLargestExponent = 500;
constexpr int kMostSplits = 14;
constexpr size_t kMostTried = 4;
constexpr double kBlockLoses = 8;
constexpr double kRareDigits = 16;  // of delta: more than K rare outcomes take at most e^-this
// The theta at which a block's tails are bounded, in units of 1/standard deviation. Lumps need the smaller ones.
constexpr std::array<double, 14> kTailShares = {0.1, 0.16, 0.25, 0.4, 0.6, 1, 1.5, 2.2, 3.3, 5, 7, 9.8, 14, 22};

// log E[e^(theta·loss)] of so many executions, tilted.
double tilted_moment(const Sketches& sketches, const std::vector<double>& counts, double c, double theta) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) sum += counts[i] * (sketches.at(i, c + theta).log_m - sketches.at(i, c).log_m);
  return sum;
}

// Where all but e^-outside of these draws lie. Returns the end.
double window_of(const Sketches& sketches, BlockPlan::Part& part, double c, double outside) {
  double variance = 0;
  for (size_t i = 0; i < part.counts.size(); ++i)
    if (part.counts[i] > 0) variance += part.counts[i] * sketches.at(i, c).variance;
  const double unit = 1 / std::sqrt(std::max(variance, 1e-30));
  double end = kInfinity;
  part.start = -kInfinity;
  for (const double share : kTailShares) {
    const double theta = share * unit;
    const double above = (tilted_moment(sketches, part.counts, c, theta) + outside) / theta;
    const double below = -(tilted_moment(sketches, part.counts, c, -theta) + outside) / theta;
    if (above < end) {
      end = above;
      part.beyond = theta;
    }
    if (below > part.start) {
      part.start = below;
      part.before = theta;
    }
  }
  return end;
}

// How far a sum of this variance goes to a side where none of its terms is larger than `largest`: Bennett's inequality.
double reach(double variance, double largest, double outside) {
  const double unit = variance / (largest * largest);
  double low = 0;
  double high = 1;
  const auto rate = [&](double u) { return unit * ((1 + u) * std::log1p(u) - u); };
  while (rate(high) < outside && high < 1e30) high *= 2;
  for (int i = 0; i < 30; ++i) {
    const double middle = (low + high) / 2;
    (rate(middle) < outside ? low : high) = middle;
  }
  return high * variance / largest;
}

// K such that more than K of rare outcomes, so many on average, have this probability at most.
double most_rare(double mean, double log_probability) {
  double most = std::ceil(mean);
  const auto tail = [&](double more) { return more - mean + more * std::log(mean / more); };
  double step = 1;
  for (; tail(most + 1) > log_probability && most < 1e15; step *= 1.3) most += std::ceil(step);
  while (most >= 1 && most > mean + 1 && tail(most) <= log_probability) most -= 1;
  return most;
}

class Planner {
 public:
  Planner(const Sketches& sketches, const std::vector<ComposedRelease>& phases, const Shape& shape, double log_delta,
          double tolerance, size_t most_points)
      : sketches_(sketches),
        phases_(phases),
        shape_(shape),
        log_delta_(log_delta),
        tolerance_(tolerance),
        most_points_(most_points),
        c_(shape.grid.c),
        length_(shape.grid.h * static_cast<double>(shape.grid.n)) {}

  std::optional<BlockPlan> plan() {
    double largest = 0;
    for (size_t i = 0; i < phases_.size(); ++i)
      for (const double loss : sketches_.all()[i].loss) largest = std::max(largest, sketches_.unbounded(loss));
    for (const double fewest : kFewestInBlocks) {
      std::vector<bool> whole;
      double most = 0;
      for (const ComposedRelease& phase : phases_) {
        whole.push_back(phase.count < fewest || phase.is_table());
        if (!whole.back()) most = std::max(most, phase.count);
      }
      if (whole == whole_) continue;
      whole_ = whole;
      most_ = most;
      if (!(most_ >= kFewestSteps && most_ < 1e15)) break;
      consider(kInfinity);
      for (int i = 1; i <= kMostSplits; ++i) consider(largest * std::pow(0.5, i));
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.points != b.points ? a.points < b.points : a.added < b.added;
    });
    for (size_t i = 0; i < std::min(kMostTried, candidates_.size()); ++i) {
      whole_ = candidates_[i].whole;
      if (auto plan = carried_out(candidates_[i])) return plan;
    }
    return std::nullopt;
  }

 private:
  struct Candidate {
    std::vector<bool> whole;
    std::vector<Split> splits;
    double blocks, period;
    size_t points;
    double added;
  };

  std::vector<double> limits(const std::vector<Split>& splits) const {
    std::vector<double> found;
    for (size_t i = 0; i < splits.size(); ++i) found.push_back(whole_[i] ? -kInfinity : splits[i].loss);
    return found;
  }

  // The epsilon that a plan with so many points adds. The more private side loses some times as much as connecting dots
  // adds: for a block by moving down its grid, for rare losses by the cells next to the split, which hold the most.
  struct Costs {
    AddedVariance of_common, of_rare;
    double beside;  // draws of which more or fewer are told than there are
    double expected, split;
  };
  double added(const Costs& costs, double blocks, double period, size_t points) const {
    const double h = length_ / static_cast<double>(points);
    const double coarse = kBlockLoses * (blocks + 1) * h * h / 6 + costs.of_rare.at(h);
    const double beside_split = costs.expected * h * std::min(0.5, h / (4 * costs.split));
    return (1 + c_) / 2 * (costs.of_common.at(period / static_cast<double>(points)) + coarse) + costs.beside +
           beside_split;
  }

  void consider(double split) {
    std::vector<Split> splits(phases_.size());
    for (size_t i = 0; i < phases_.size(); ++i) {
      double rare = 0;
      for (size_t j = 0; j < sketches_.all()[i].loss.size(); ++j)
        if (sketches_.unbounded(sketches_.all()[i].loss[j]) >= split) rare += sketches_.all()[i].mass[j];
      if (whole_[i] || !(rare > 0)) continue;
      if (rare > 0.1) return;
      const double probability = log_delta_ - kRareDigits - std::log(static_cast<double>(phases_.size()));
      splits[i] = {split, std::min(phases_[i].count, most_rare(phases_[i].count * rare, probability))};
      if (splits[i].most_rare > phases_[i].count / 2) return;
    }
    const Sketches common = sketches_.common(limits(splits));
    const Sketches rare_ones = sketches_.rare(limits(splits));
    Costs costs{AddedVariance(common, 0), AddedVariance(rare_ones, c_), 0, 0, split};
    double variance = 0;
    double largest = 1e-300;
    double range = 0;
    for (size_t i = 0; i < phases_.size(); ++i) {
      if (whole_[i]) continue;
      const RealMoment one = common.at(i, c_);
      variance += phases_[i].count * one.variance;
      const auto [low, high] = std::minmax_element(common.all()[i].loss.begin(), common.all()[i].loss.end());
      range = std::max(range, *high - *low);
      largest = std::max(largest, std::max(std::abs(*low), std::abs(*high)));
      if (splits[i].loss < kInfinity) {
        const double expected = phases_[i].count * std::exp(rare_ones.at(i, c_).log_m - sketches_.at(i, c_).log_m);
        costs.beside += (expected + splits[i].most_rare) * std::abs(one.log_m - common.all()[i].log_total) / c_;
        costs.expected += expected;
      }
    }
    std::vector<double> blocks = {1};
    for (const double share : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
      blocks.push_back(std::round(share * std::sqrt(most_)));
      // Near it, the counts that leave little of one phase: the rest of a phase needs a window too.
      const double near = blocks.back();
      for (const ComposedRelease& phase : phases_)
        if (phase.count >= near) blocks.push_back(std::floor(phase.count / std::ceil(phase.count / near)));
    }
    for (const double count : blocks) {
      if (!(count >= 1) || (count > 1 && !(kFewestInBlock * count <= most_))) continue;
      const double in_block = variance / count;
      Candidate candidate{whole_, splits, count, 0, kFewestPoints, 0};
      candidate.period =
          std::max(1.1 * range, reach(in_block, largest, outside(count)) + std::sqrt(2 * outside(count) * in_block));
      if (!fits(candidate.period)) continue;
      const auto adds = [&](size_t points) { return added(costs, count, candidate.period, points); };
      while (candidate.points < most_points_ && adds(candidate.points) > tolerance_) candidate.points *= 2;
      candidate.added = adds(candidate.points);
      candidates_.push_back(std::move(candidate));
    }
  }

  bool fits(double period) const { return period > 0 && period < length_ / 2 && (c_ + 1) * period < kLargestExponent; }
  double outside(double blocks) const { return std::max(kOutside, kBeyond - log_delta_ + std::log(blocks)); }

  std::optional<BlockPlan> carried_out(const Candidate& candidate) const {
    const size_t n = candidate.points;
    const double h = length_ / static_cast<double>(n);
    BlockPlan plan{};
    plan.splits = candidate.splits;
    for (Split& split : plan.splits)  // where a cell of the coarse grid begins, when losses are merged
      if (split.loss < kInfinity) split.loss = (std::ceil(split.loss / h) + 0.5) * h;
    plan.whole = whole_;
    plan.blocks = candidate.blocks;
    plan.added = candidate.added;
    const Sketches common = sketches_.common(limits(plan.splits));
    double period = 0;
    for (const bool less_private : {true, false}) {
      BlockPlan::Part block{.counts = {}, .times = plan.blocks};
      BlockPlan::Part rest{.counts = {}, .times = 1};
      double left = 0;
      for (size_t i = 0; i < phases_.size(); ++i) {
        const double count = whole_[i] ? 0 : phases_[i].count - (less_private ? 0 : plan.splits[i].most_rare);
        block.counts.push_back(std::floor(count / plan.blocks));
        rest.counts.push_back(count - plan.blocks * block.counts.back());
        left += rest.counts.back();
      }
      auto& parts = less_private ? plan.less_private : plan.more_private;
      parts.push_back(block);
      if (left > 0) parts.push_back(rest);
      for (BlockPlan::Part& part : parts) {
        const double end = window_of(common, part, c_, outside(plan.blocks));
        period = std::max(period, end - part.start);
      }
    }
    for (size_t i = 0; i < phases_.size(); ++i) {
      const auto& losses = common.all()[i].loss;
      const auto [low, high] = std::minmax_element(losses.begin(), losses.end());
      if (!whole_[i]) period = std::max(period, 1.1 * (*high - *low));
      plan.log_scale.push_back(common.at(i, c_).log_m);
    }
    if (!fits(period)) return std::nullopt;
    // A whole number of fine steps in a coarse one: then all merged neighbours are cut alike.
    plan.h = length_ / std::floor(length_ / period) / static_cast<double>(n);
    plan.coarse = shape_;
    plan.coarse.grid.n = n;
    plan.coarse.grid.h = h;
    const double first = static_cast<double>(shape_.start + 2) * shape_.grid.h;
    plan.coarse.start = static_cast<int64_t>(std::floor(first / h)) - 2;
    return plan;
  }

  const Sketches& sketches_;
  const std::vector<ComposedRelease>& phases_;
  const Shape& shape_;
  double log_delta_, tolerance_;
  size_t most_points_;
  double c_, length_;
  std::vector<bool> whole_;  // that is looked at
  double most_ = 0;          // steps of a phase that is in blocks
  std::vector<Candidate> candidates_;
};

}  // namespace

std::optional<BlockPlan> plan_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                     const Shape& shape, double log_delta, double tolerance, size_t most_points) {
  return Planner(sketches, phases, shape, log_delta, tolerance, most_points).plan();
}

}  // namespace ghostshard::accountant
