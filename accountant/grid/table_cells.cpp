#include "accountant/grid/table_cells.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/grid/loss_cells.h"
#include "accountant/grid/regrid.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kLargestExponent = 700;  // the tilt is a double up to here
constexpr double kFarthest = 1e15;        // a place on the grid
constexpr double kNearlyOn = 1e-3;        // a mass so little above a grid point, in steps, goes down to it

// Larger losses are so rare that they count as infinite, or not at all.
bool looked_at(double loss, const GridShape& shape) {
  return loss <= shape.high && std::abs(loss) / shape.h < kFarthest;
}

using Placed = std::vector<std::pair<int64_t, double>>;

// Adds to the place k, near the end of an ascending list.
void add(Placed& placed, int64_t k, double mass) {
  auto at = placed.end();
  while (at != placed.begin() && std::prev(at)->first > k) --at;
  if (at != placed.begin() && std::prev(at)->first == k)
    std::prev(at)->second += mass;
  else
    placed.insert(at, {k, mass});
}

// The cells of these places, with the roundings of the tilt.
TiltedCells finished(const Placed& placed, double shift, const GridShape& shape) {
  TiltedCells cells = placed_on_grid(placed, shift, shape, shape.log_scale);
  for (const auto& [k, mass] : placed)
    note_rounding(cells, tilt_rounding(shape, std::abs((static_cast<double>(k) + shift) * shape.h) + shape.h), mass);
  return cells;
}

}  // namespace

TiltedCells less_private_table(const LossAtoms& atoms, const GridShape& shape) {
  const double h = shape.h;
  const double width = -std::expm1(-h);
  Placed placed;
  double dropped = atoms.infinite;
  for (size_t i = 0; i < atoms.loss.size(); ++i) {
    const double loss = atoms.loss[i];
    const double mass = atoms.mass[i];
    if (!looked_at(loss, shape)) {
      dropped += mass * (1 + 1e-12);
      continue;
    }
    auto k = static_cast<int64_t>(std::floor(loss / h));
    if (loss - static_cast<double>(k) * h >= h) ++k;  // the quotient was rounded
    const double place = static_cast<double>(k) * h;
    const double exponent = shape.c * (place + h) - shape.log_scale;
    if (exponent > kLargestExponent) {  // too rare for the tilt to be a double
      dropped += mass * (1 + 1e-12);
      continue;
    }
    const double above = std::max(0.0, loss - place);
    const double share = std::clamp(-std::expm1(-above) / width + 8 * kRounding * (1 + std::abs(loss) / h), 0.0, 1.0);
    if (share < 1) add(placed, k, mass * (1 - share) * std::exp(exponent - shape.c * h));
    if (share > 0) add(placed, k + 1, mass * share * std::exp(exponent));
  }
  TiltedCells cells = finished(placed, 0, shape);
  cells.dropped = dropped;
  return cells;
}

namespace {

// Outcomes that are being merged: of loss log(P/Q), which exceeds `target` if `lacking` < 0.
class Merged {
 public:
  Merged(const GridShape& shape, double shift) : shape_(shape), shift_(shift) {}

  bool empty() const { return !(mass_ > 0); }
  double loss_of(int64_t k) const { return (static_cast<double>(k) + shift_) * shape_.h; }

  // Begins with an outcome of this loss: the grid point that it is to be put on.
  void aim_from(double loss) {
    k_ = static_cast<int64_t>(std::floor(loss / shape_.h - shift_));
    if (loss_of(k_) > loss) --k_;
    if (loss - loss_of(k_) > kNearlyOn * shape_.h) ++k_;
    mass_ = lacking_ = 0;
    terms_ = 0;
    span_ = 0;
  }

  // Takes as much of the outcome as is needed; returns the share taken. Q's mass times e^target is P's times
  // e^(target - loss), hence `lacking` their difference.
  double take(double loss, double mass) {
    const double of_unit = std::expm1(loss_of(k_) - loss);
    ++terms_;
    span_ = std::max(span_, std::abs(loss - loss_of(k_)));
    const double wanted = -(lacking_ + slack(mass)) / (of_unit * mass);  // of it, if its loss is above
    const double share = of_unit < 0 && !empty() && wanted < 1 ? std::max(wanted, 0.0) : 1;
    lacking_ += share * mass * of_unit;
    mass_ += share * mass;
    return share;
  }
  bool complete() const { return !empty() && lacking_ <= -0.999 * slack(0); }

  void put(Placed& placed) const {
    const double exponent = shape_.c * loss_of(k_) - shape_.log_scale;
    if (exponent <= kLargestExponent) add(placed, k_, mass_ * (1 - 1e-14) * std::exp(exponent));
  }
  // The last ones, whose loss lies below: a step further down, or as many as there must be.
  void put_below(Placed& placed) {
    const double loss = loss_of(k_) - std::log1p((lacking_ + slack(0)) / mass_);
    k_ = static_cast<int64_t>(std::floor(loss / shape_.h - shift_)) - 1;
    put(placed);
  }

 private:
  // Roundings of the sums, and of losses and grid points.
  double slack(double mass) const {
    const double target = std::abs(loss_of(k_));
    return (mass_ + mass) * kRounding * (16 + terms_ + 8 * (target + span_) + 8 * std::expm1(std::min(span_, 600.0)));
  }

  const GridShape& shape_;
  double shift_;
  int64_t k_ = 0;
  double mass_ = 0, lacking_ = 0, terms_ = 0, span_ = 0;
};

}  // namespace

TiltedCells more_private_table(const LossAtoms& atoms, const GridShape& shape) {
  // The heaviest outcome under the tilt lies on the grid, but for a little.
  double heaviest = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < atoms.loss.size(); ++i) {
    const double weight = std::log(atoms.mass[i]) + shape.c * atoms.loss[i];
    if (weight > most && looked_at(atoms.loss[i], shape)) {
      most = weight;
      heaviest = atoms.loss[i] / shape.h;
    }
  }
  const double shift = heaviest - std::floor(heaviest) - kNearlyOn * 1e-3;
  Placed placed;
  Merged merged(shape, shift);
  bool open = false;
  for (size_t i = 0; i < atoms.loss.size(); ++i) {
    double left = looked_at(atoms.loss[i], shape) ? atoms.mass[i] : 0;
    while (left > 0) {
      if (!open) merged.aim_from(atoms.loss[i]);
      const double share = merged.take(atoms.loss[i], left);
      open = !merged.complete();
      left = share < 1 ? left * (1 - share) * (1 - 4 * kRounding) : 0;
      if (!open) merged.put(placed);
      if (open && share < 1) break;  // rounding: what is left is left out
    }
  }
  if (open && !merged.empty()) merged.put_below(placed);
  if (placed.empty()) placed.emplace_back(0, 0.0);
  return finished(placed, shift, shape);
}

}  // namespace ghostshard::accountant
