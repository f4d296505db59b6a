// The less private distribution (pld_cells.h): dots connected, nothing but roundings added.
#include "accountant/grid/pld_cells.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "accountant/grid/loss_cells.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestExponent = 700;  // the tilt is a double up to here

}  // namespace

TiltedCells less_private_cells(Direction direction, SampledGaussian release, const GridShape& shape) {
  TiltedCells cells;
  cells.mass.assign(shape.n, 0);
  const double h = shape.h;
  const double width = -std::expm1(-h);
  LossMoments moments(shape.c, 0, h, 0);
  const LossMoments::Masses steps = [&] {
    LossMoments::Masses found{};
    for (size_t j = 0; j < found.size(); ++j) found[j] = std::exp(moments.c(j) * h);
    return found;
  }();
  Cells even = cells_of(direction, release, shape, 0);
  even.open = false;
  const Outcomes outcomes(direction, release);
  const double ratio = std::exp(shape.c * h);
  double too_rare = 0;  // for the tilt to be a double
  // Puts `left` on the place i and `right` on the next one, but for the share of it that stands for a boundary that
  // lies `off` too far to the right.
  const auto put = [&](int64_t i, double left, double right, double off) {
    const double loss = static_cast<double>(i) * h;
    const double exponent = shape.c * loss - shape.log_scale;
    if (exponent > kLargestExponent) {
      too_rare += (left + right) * (1 + 1e-12);
      return;
    }
    const double over = right * std::min(1.0, off / width);
    right -= over;
    const double tilt = std::exp(exponent);
    cells.mass[wrapped(i, shape.n)] += left * tilt;
    cells.mass[wrapped(i + 1, shape.n)] += right * tilt * ratio;
    cells.mass[wrapped(i + 2, shape.n)] += over * tilt * ratio * ratio;
    const double all = left + right * ratio + over * ratio * ratio;
    note_rounding(cells, tilt_rounding(shape, std::abs(loss) + 2 * h), all * tilt);
    LossMoments::Masses masses;
    for (size_t j = 0; j < steps.size(); ++j) masses[j] = left + right * steps[j] + over * steps[j] * steps[j];
    moments.add(i, masses);
  };
  if (const double before = mass_before(outcomes, even); before > 0)
    put(even.begin - 1, 0, before, outcomes.misplaced(even.loss_of(even.begin)));
  double misplaced = outcomes.misplaced(even.loss_of(even.begin));  // the lower boundary
  cells.dropped = for_each_cell(outcomes, even, [&](int64_t i, const Outcomes::Mass& p, const Outcomes::Mass& q) {
    const double below = std::exchange(misplaced, outcomes.misplaced(even.loss_of(i + 1)));
    const double total = p.value + p.error;
    if (!(total > 0)) return;
    // Of losses in [a - off, b + off] P goes to b + off but for what e^(a - off)·Q takes off.
    const double off = std::max(below, misplaced);
    const double error = (p.error + q.error + 4 * kRounding * (p.value + q.value) + off * q.value) / width;
    const double right = q.value < kInfinity ? std::clamp((p.value - q.value) / width + error, 0.0, total) : total;
    put(i, total - right, right, off);
  });
  cells.dropped += too_rare;
  cells.moments = moments.logs(0);
  return cells;
}

}  // namespace ghostshard::accountant
