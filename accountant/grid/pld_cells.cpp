// The less private distribution (pld_cells.h): dots connected, nothing but roundings added.
#include "accountant/grid/pld_cells.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
  LossMoments moments(shape.c);
  const std::array<double, kMomentShares.size()> steps = [&] {
    std::array<double, kMomentShares.size()> found{};
    for (size_t j = 0; j < found.size(); ++j) found[j] = std::exp(moments.c(j) * h);
    return found;
  }();
  const Cells even = cells_of(direction, release, shape, 0);
  double too_rare = 0;  // for the tilt to be a double
  cells.dropped = for_each_cell(
      Outcomes(direction, release), even, [&](int64_t i, const Outcomes::Mass& p, const Outcomes::Mass& q) {
        const double loss = static_cast<double>(i) * h;
        const double total = p.value + p.error;
        if (!(total > 0)) return;
        const double exponent = shape.c * loss - shape.log_scale;
        if (exponent > kLargestExponent) {
          too_rare += total * (1 + 1e-12);
          return;
        }
        // Where Q·e^loss is beyond a double, as of all that lies below the first cell, all of P goes to the left.
        const double error = (p.error + q.error + 4 * kRounding * (p.value + q.value)) / width;
        const double right = q.value < kInfinity ? std::clamp((p.value - q.value) / width + error, 0.0, total) : 0;
        const double left = total - right;
        const double tilt = std::exp(exponent);
        cells.mass[wrapped(i, shape.n)] += left * tilt;
        cells.mass[wrapped(i + 1, shape.n)] += right * tilt * std::exp(shape.c * h);
        note_rounding(cells, tilt_rounding(shape, std::abs(loss) + h), (left + right * std::exp(shape.c * h)) * tilt);
        for (size_t j = 0; j < steps.size(); ++j) moments.add(j, left + right * steps[j], moments.c(j) * loss);
      });
  cells.dropped += too_rare;
  cells.moments = moments.logs(0);
  return cells;
}

}  // namespace ghostshard::accountant
