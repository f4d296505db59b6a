#include "accountant/losses/dominating_pair.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr double kLeastMass = 1e-290;  // below it a mass may have lost its digits

// log(1 - q + q·e^loss), the loss of an outcome once the release is sampled. Below -1/2, where q is above 1/2 and 1 - q
// therefore exact, the sum of two positive numbers keeps the digits that 1 + v loses as q goes to 1.
double sampled_loss(double q, double loss) {
  if (loss == -kInfinity) return std::log1p(-q);
  if (loss > 30) return loss + std::log(q + (1 - q) * std::exp(-loss));
  const double v = q * std::expm1(loss);
  return v < -0.5 ? std::log((1 - q) + q * std::exp(loss)) : std::log1p(v);
}

// q·e^loss, even if e^loss alone is too large for a double. Nothing for less than the least mass, which raises losses.
double lifted(double q, double loss) { return q > kLeastMass ? std::exp(std::log(q) + loss) : 0; }

// A loss of -infinity counts at no epsilon, in no composition.
void put(LossAtoms& atoms, double loss, double mass) {
  if (!(mass > 0) || loss == -kInfinity) return;
  if (!atoms.loss.empty() && atoms.loss.back() >= loss) {  // the boundary of two cells
    atoms.mass.back() += mass;
    return;
  }
  atoms.loss.push_back(loss);
  atoms.mass.push_back(mass);
}

// Of losses that lie in [low - e, high + e], e their error: delta, which is convex in x = e^epsilon, is P at 0 and at
// most P - e^(low - e)·Q from x = e^(low + e) on. `right` is at least (P - (1 - e)·e^low·Q)/width, so that the two
// atoms, at low + e and high + e, have no less there, and as much at 0; 0 from e^(high + e) on is what it is.
LossAtoms less_private(const LossCells& cells) {
  LossAtoms atoms;
  const auto error_of = [&](double loss) { return cells.loss_error * (1 + std::abs(loss)); };
  const auto raised = [&](double loss) { return std::isfinite(loss) ? loss + error_of(loss) : loss; };
  for (const LossCell& cell : cells.cells) {
    const double total = (cell.p + cell.p_error) * (1 + 8 * kRounding);
    if (std::isnan(total) || std::isnan(cell.low) || std::isnan(cell.high)) {
      atoms.infinite += 1;  // numbers too large for a double: nothing is known of this cell
    } else if (cell.high == kInfinity) {
      atoms.infinite += total;
    } else if (cell.low == -kInfinity || !(cell.high - cell.low > 1e-13 * (1 + std::abs(cell.high)))) {
      put(atoms, raised(cell.high), total);
    } else {
      const double width = -std::expm1(-(cell.high - cell.low));
      const double q = lifted(cell.q, cell.low);
      const double exponent = 1 + std::abs(cell.low) + std::abs(std::log(std::max(cell.q, 1e-300)));
      const double error = cell.p_error + lifted(cell.q_error, cell.low) + 8 * kRounding * (cell.p + q * exponent) +
                           q * error_of(cell.low);
      const double wanted = q < kInfinity ? std::clamp((cell.p - q + error) / width, 0.0, total) : 0;
      const double right = std::isnan(wanted) ? total : wanted;
      put(atoms, raised(cell.low), total - right);
      put(atoms, raised(cell.high), right);
    }
  }
  return atoms;
}

LossAtoms more_private(const LossCells& cells) {
  LossAtoms atoms;
  for (const LossCell& cell : cells.cells) {
    const double p = (cell.p - cell.p_error) * (1 - 8 * kRounding);
    const double q = (cell.q + cell.q_error) * (1 + 8 * kRounding);
    if (!(p > kLeastMass && q > kLeastMass)) continue;  // leaving mass out is sound
    const double loss = std::min(std::log(p) - std::log(q), cell.high);
    const double lowered = loss - (cells.loss_error + 8 * kRounding) * (1 + std::abs(loss));
    atoms.loss.push_back(lowered);
    atoms.mass.push_back(p);
  }
  // Errors of masses may put two neighbours in the wrong order by as much.
  for (size_t i = atoms.loss.size(); i-- > 1;) atoms.loss[i - 1] = std::min(atoms.loss[i - 1], atoms.loss[i]);
  return atoms;
}

LossCells exchanged(const LossCells& cells) {
  LossCells other{{}, cells.loss_error};
  for (auto cell = cells.cells.rbegin(); cell != cells.cells.rend(); ++cell)
    other.cells.push_back({-cell->high, -cell->low, cell->q, cell->p, cell->q_error, cell->p_error});
  return other;
}

}  // namespace

LossCells poisson_sampled(const LossCells& cells, double q) {
  // The loss moves by no more than the unsampled one, which may be larger by -log q.
  LossCells sampled{{}, cells.loss_error * (1 - std::log(q)) + 8 * kRounding};
  for (const LossCell& cell : cells.cells) {
    const double p = (1 - q) * cell.q + q * cell.p;
    const double p_error = (1 - q) * cell.q_error + q * cell.p_error + 4 * kRounding * p;
    sampled.cells.push_back({sampled_loss(q, cell.low), cell.high == kInfinity ? kInfinity : sampled_loss(q, cell.high),
                             p, cell.q, p_error, cell.q_error});
  }
  return sampled;
}

DominatingPair dominating_pair_of(const LossCells& cells) {
  const LossCells other = exchanged(cells);
  return {{less_private(cells), more_private(cells)}, {less_private(other), more_private(other)}};
}

}  // namespace ghostshard::accountant
