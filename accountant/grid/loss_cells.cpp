#include "accountant/grid/loss_cells.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kModerate = 64 * kRounding;  // roundings of a mass up to this are counted relative to it

}  // namespace

LossMoments::LossMoments(double c, double tilt, double h, double offset) : tilt_(tilt), h_(h), offset_(offset) {
  constexpr double kMostOfBlock = 100;  // an exponent, relative to that of the block's first cell
  double steepest = 0;
  for (size_t j = 0; j < c_.size(); ++j) {
    c_[j] = c * kMomentShares[j];
    steepest = std::max(steepest, std::abs(slope(j)));
  }
  while (size_ > 1 && !(steepest * static_cast<double>(size_) <= kMostOfBlock)) size_ /= 2;
  for (int64_t i = 0; i < size_; ++i)
    for (size_t j = 0; j < c_.size(); ++j)
      turns_[static_cast<size_t>(i)][j] = std::exp(slope(j) * static_cast<double>(i));
}

// From the cell before this one: some are moved down by one.
void LossMoments::begin_block(int64_t i) {
  end_block();
  first_ = size_ > 1 ? i - 1 : i;
}

void LossMoments::end_block() {
  constexpr double kFar = 300;
  constexpr double kFarthest = 600;  // smaller terms are counted as large as this
  for (size_t j = 0; j < c_.size(); ++j) {
    if (block_[j] == 0) continue;
    const double exponent = slope(j) * (static_cast<double>(first_) + offset_);
    if (exponent > base_[j] + kFar) {
      sum_[j] *= std::exp(std::max(base_[j] - exponent, -kFarthest));
      base_[j] = exponent;
    }
    sum_[j] += block_[j] * std::exp(std::max(exponent - base_[j], -kFarthest));
  }
  block_ = {};
}

std::vector<std::pair<double, double>> LossMoments::logs(double log_scale) {
  end_block();
  std::vector<std::pair<double, double>> found;
  for (size_t j = 0; j < c_.size(); ++j)
    found.emplace_back(c_[j], base_[j] + std::log(sum_[j]) + log_scale + 2e-9 +
                                  8 * kRounding * (std::abs(base_[j]) + std::abs(log_scale)));
  return found;
}

double Cells::upper_end(int64_t i) const {
  const auto index = static_cast<size_t>(i + 1 - begin);
  const double place = (static_cast<double>(i + 1) + at + (index < moved.size() ? moved[index] : 0.0)) * h;
  return std::clamp(place, from, to);
}

Outcomes::Boundary Cells::boundary(const Outcomes& outcomes, int64_t i) const {
  if (i > begin) return outcomes.at(upper_end(i - 1));
  if (from > -kInfinity) return outcomes.at(from);
  return open ? outcomes.below_all() : outcomes.at(loss_of(begin));
}

double mass_before(const Outcomes& outcomes, const Cells& cells) {
  if (cells.open || cells.from > -kInfinity) return 0;
  const auto [p, q] = outcomes.between(outcomes.below_all(), outcomes.at(cells.loss_of(cells.begin)), 0);
  return p.value + p.error;
}

Cells cells_of(Direction direction, SampledGaussian release, const GridShape& shape, double at) {
  auto [least, most] = losses_of(direction, release, shape.low, shape.high);
  least = std::max(least, shape.from);
  most = std::max(least, std::min(most, shape.to));
  return {static_cast<int64_t>(std::floor(least / shape.h - at)),
          static_cast<int64_t>(std::floor(most / shape.h - at)) + 1,
          shape.h,
          shape.from,
          shape.to,
          at};
}

double tilt_rounding(const GridShape& shape, double loss) {
  return kRounding * (8 + 2 * (shape.c * loss + std::abs(shape.log_scale)));
}

void note_rounding(TiltedCells& cells, double relative, double mass) {
  if (relative <= kModerate)
    cells.relative = std::max(cells.relative, relative);
  else
    cells.rounding += relative * mass;
}

}  // namespace ghostshard::accountant
