#include "accountant/losses/laws.h"
#include "accountant/shown.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kCells = 4096;
constexpr double kLossError = 16 * kRounding;

// Between two losses, where P has the density e^(-(top - loss)/2)·scale/2 and Q the same at -loss: between the atoms of
// Laplace noise, and of bounded range. P(a, b) = scale·e^(-(top-b)/2)·(1 - e^(-(b-a)/2)), Q(a, b) likewise.
void add_exponential(std::vector<LossCell>& cells, double top, double scale) {
  const double relative = kRounding * (16 + 4 * top);
  for (int i = 0; i < kCells; ++i) {
    const double a = top * (2.0 * i / kCells - 1);
    const double b = top * (2.0 * (i + 1) / kCells - 1);
    const double share = -std::expm1(-(b - a) / 2) * scale;  // of the same doubles that are the cell's ends
    const double p = share * std::exp(-(top - b) / 2);
    const double q = share * std::exp(-(top + a) / 2);
    cells.push_back({a, b, p, q, relative * p, relative * q});
  }
}

LossCell atom(double loss, double p, double q, double relative) {
  return {loss, loss, p, q, relative * p, relative * q};
}

}  // namespace

// Several coordinates with shifts s_1 + s_2 + … = s lose no more than one with s. Of one, U = s - loss has under P the
// tail e^(-u/2)/2 for 0 <= u < 2s. If s_2 >= s_1, then for u < 2·s_2 the tail of U_1 + U_2 is no less: for u >= 2·s_1
// that of U_2 alone is that, below that of the larger of the two is 1 - (1 - e^(-u/2)/2)². For epsilon >= 0, (1 -
// e^(epsilon - loss))+ falls with U and is 0 from U = s - epsilon <= 2·s_2 on, so its mean is no larger; negative
// epsilons follow, as both pairs are symmetric. The same holds of integers.
//
// At x <= 0 the loss is s = 1/scale, at x >= 1 it is -s, between (1 - 2x)·s: P(loss > l) = 1 - e^(-(s-l)/2)/2.
LossCells laplace_losses(double scale) {
  const double s = 1 / scale;
  const double relative = kRounding * (8 + s);
  LossCells found{{}, kLossError};
  found.cells.push_back(atom(-s, std::exp(-s) / 2, 0.5, relative));
  add_exponential(found.cells, s, 0.5);
  found.cells.push_back(atom(s, 0.5, std::exp(-s) / 2, relative));
  return found;
}

// The same on integers: at x <= 0 the loss is a·shift, at x >= shift it is -a·shift, between a·(shift - 2x). Runs of
// integers are one cell if there are many.
LossCells discrete_laplace_losses(double a, int64_t shift) {
  const auto k = static_cast<double>(shift);
  const double at_zero = std::tanh(a / 2);
  const double end = 1 / (1 + std::exp(-a));
  const double relative = kRounding * (16 + 4 * a * k);
  LossCells found{{}, kLossError};
  found.cells.push_back(atom(-a * k, end * std::exp(-a * k), end, relative));
  const int64_t stride = std::max<int64_t>(1, (shift - 1 + kCells) / kCells);
  for (int64_t last = shift - 1; last >= 1; last -= stride) {  // losses ascend as x descends
    const auto first = static_cast<double>(std::max<int64_t>(1, last - stride + 1));
    const auto end_of = static_cast<double>(last);
    const double terms = std::expm1(-a * (end_of - first + 1)) / std::expm1(-a);
    const double p = at_zero * std::exp(-a * first) * terms;
    const double q = at_zero * std::exp(-a * (k - end_of)) * terms;
    found.cells.push_back({a * (k - 2 * end_of), a * (k - 2 * first), p, q, relative * p, relative * q});
  }
  found.cells.push_back(atom(a * k, end, end * std::exp(-a * k), relative));
  return found;
}

// The loss of x is shift·(shift - 2x)/(2·deviation²).
LossCells discrete_gaussian_losses(double deviation, int64_t shift) {
  constexpr double kMost = 1e6;
  constexpr double kReach = 30;  // deviations, beyond which lies e^-450 of the probability, and a little
  constexpr double kBeyond = 1e-190;
  if (!(deviation <= kMost && static_cast<double>(shift) <= kMost))
    throw std::invalid_argument("a discrete Gaussian's deviation and sensitivity must be at most 1e6, got " +
                                shown(deviation) + " and " + std::to_string(shift));
  const auto reach = static_cast<int64_t>(std::ceil(kReach * deviation)) + 1;
  // Divided before they are multiplied: 1/deviation² may be no double.
  const auto weight = [&](double x) { return std::exp(-0.5 * (x / deviation) * (x / deviation)); };
  long double total = 1;
  for (int64_t x = reach; x >= 1; --x) total += 2 * static_cast<long double>(weight(static_cast<double>(x)));
  const auto normaliser = static_cast<double>(total);
  const double relative = kRounding * (64 + 8 * kReach * kReach);  // of exponents up to kReach²/2 and two thirds more
  const auto k = static_cast<double>(shift);
  const auto loss = [&](int64_t x) { return 0.5 * (k / deviation) * ((k - 2 * static_cast<double>(x)) / deviation); };
  const int64_t highest = shift + reach;
  const int64_t stride = std::max<int64_t>(1, (highest + reach) / (int64_t{4} * kCells));
  LossCells found{{}, kLossError};
  found.cells.push_back({-kInfinity, loss(highest), 0, 0, kBeyond, kBeyond});
  for (int64_t last = highest; last >= -reach; last -= stride) {
    const int64_t first = std::max(-reach, last - stride + 1);
    long double p = 0;
    long double q = 0;
    for (int64_t x = first; x <= last; ++x) {
      p += weight(static_cast<double>(x));
      q += weight(static_cast<double>(x - shift));
    }
    const double p_mass = static_cast<double>(p) / normaliser;
    const double q_mass = static_cast<double>(q) / normaliser;
    found.cells.push_back(
        {loss(last), loss(first), p_mass, q_mass, relative * p_mass + 1e-300, relative * q_mass + 1e-300});
  }
  found.cells.push_back({loss(-reach), kInfinity, 0, 0, kBeyond, kBeyond});
  return found;
}

// A mechanism is epsilon-bounded range if and only if for some t in [0, epsilon] its losses lie in [t - epsilon, t];
// its worst pair has these two alone, P(t) = (1 - e^(t-epsilon))/(1 - e^-epsilon). The largest (1 - e^(l-t))·P(t) over
// t is at t = (epsilon + l)/2,
//   delta(l) = (1 - e^(-(epsilon-l)/2))²/(1 - e^-epsilon) for |l| <= epsilon,
// convex in e^l, hence that of a pair: P(loss > l) = (1 - e^(-(epsilon-l)/2))/(1 - e^-epsilon), without atoms.
LossCells bounded_range_losses(double epsilon) {
  LossCells found{{}, kLossError};
  if (epsilon > 1e-290)
    add_exponential(found.cells, epsilon, -1 / std::expm1(-epsilon));
  else  // no more than epsilon-DP
    found = epsilon_delta_losses(epsilon, 0);
  return found;
}

// Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776, Thm. 3.3): random response and, with probability delta, all.
LossCells epsilon_delta_losses(double epsilon, double delta) {
  const double relative = 16 * kRounding;
  const double large = (1 - delta) / (1 + std::exp(-epsilon));
  const double small = large * std::exp(-epsilon);
  LossCells found{{}, kLossError};
  found.cells.push_back({-kInfinity, -epsilon, 0, delta, 0, 0});
  if (epsilon > 0) {
    found.cells.push_back(atom(-epsilon, small, large, relative * (1 + epsilon)));
    found.cells.push_back(atom(epsilon, large, small, relative * (1 + epsilon)));
  } else {
    found.cells.push_back(atom(0, 1 - delta, 1 - delta, relative));
  }
  found.cells.push_back({epsilon, kInfinity, delta, 0, 0, 0});
  return found;
}

// The logarithm of the least of κ(c)·e^(c·(xi + rho·(1 + c)) - c·loss) over c > 0 (chernoff.h): a bound on delta at
// this loss, rounded up. Any c gives one.
namespace {
double zcdp_log_delta(double rho, double xi, double loss) {
  const auto at = [&](double log_c) {
    const double c = std::exp(log_c);
    const double gain = xi + rho * (1 + c) - loss;
    const double kappa = -c * std::log1p(1 / c) - std::log1p(c);
    return c * gain + kappa + 16 * kRounding * (1 + c * (xi + rho * (1 + c) + std::abs(loss)) + std::abs(kappa));
  };
  double low = -20;
  double high = 40;
  for (int i = 0; i < 90; ++i) {  // unimodal; wherever it ends is a bound
    const double left = low + (high - low) / 3;
    const double right = high - (high - low) / 3;
    (at(left) < at(right) ? high : low) = at(left) < at(right) ? right : left;
  }
  return std::min({at(low), at(high), 0.0});
}
}  // namespace

// delta at losses l_0 = 0 < l_1 < … bounds that of any such mechanism, which is convex in e^l: so the chords of the
// lower convex hull bound it between them as well. Their slopes are the pair's masses. Negative losses are those of the
// other direction, which has the same bound; the rest of the probability loses nothing.
LossCells losses_below(const std::function<double(double loss)>& log_delta) {
  constexpr double kLeastDelta = -500;    // logarithm; beyond the last loss all is lost
  constexpr double kNotNothing = 1e-300;  // whatever is left there, however fast it falls
  LossCells found{{}, kLossError};
  double last = 1;
  while (log_delta(last) > kLeastDelta && last < 600) last *= 1.5;
  struct Point {
    double loss, delta;
  };
  std::vector<Point> hull;
  // (y1 - y0)/(x1 - x0) in x = e^loss, times e^(loss of the second): no overflow.
  const auto slope = [](const Point& a, const Point& b) { return (a.delta - b.delta) / -std::expm1(a.loss - b.loss); };
  for (int i = 0; i <= kCells; ++i) {
    const double loss = last * i / kCells;
    const Point next{loss, std::max(std::exp(log_delta(loss)), kNotNothing)};
    while (hull.size() >= 2) {
      const Point& a = hull[hull.size() - 2];
      const Point& b = hull.back();
      if (slope(a, b) * std::exp(next.loss - b.loss) > slope(b, next)) break;
      hull.pop_back();
    }
    hull.push_back(next);
  }
  // Q(loss > l) = -slope at l; the atom at a corner is the difference of the slopes beside it.
  std::vector<LossCell> positive;
  double p_total = 0;
  double q_total = 0;
  for (size_t i = 1; i < hull.size(); ++i) {
    const double before = slope(hull[i - 1], hull[i]);  // times e^loss of hull[i]
    const double after =
        i + 1 < hull.size() ? slope(hull[i], hull[i + 1]) * std::exp(hull[i].loss - hull[i + 1].loss) : 0;
    const double p = std::max(0.0, before - after);
    const double q = p * std::exp(-hull[i].loss);
    positive.push_back(atom(hull[i].loss, p, q, 1e-11));
    p_total += p;
    q_total += q;
  }
  const double beyond = hull.back().delta;
  for (size_t i = positive.size(); i-- > 0;) {
    const LossCell& one = positive[i];
    found.cells.push_back({-one.low, -one.low, one.q, one.p, one.q_error, one.p_error});
  }
  found.cells.insert(found.cells.begin(), {-kInfinity, -hull.back().loss, 0, beyond, 0, 0});
  const double rest = std::max(0.0, 1 - p_total - q_total - beyond);
  found.cells.push_back(atom(0, rest, rest, 1e-11));
  found.cells.insert(found.cells.end(), positive.begin(), positive.end());
  found.cells.push_back({hull.back().loss, kInfinity, beyond, 0, 0, 0});
  return found;
}

LossCells zcdp_losses(double rho, double xi) {
  return losses_below([&](double loss) { return zcdp_log_delta(rho, xi, loss); });
}

LossCells table_losses(const LossTableEvent& table) {
  std::vector<std::pair<double, double>> sorted;
  for (size_t i = 0; i < table.losses.size(); ++i) sorted.emplace_back(table.losses[i], table.probabilities[i]);
  std::sort(sorted.begin(), sorted.end());
  LossCells found{{}, kLossError};
  // Added up in long double: a table of any length has no more rounding than its doubles.
  long double other = 0;
  long double total = 0;
  double of_others = 0;
  for (const auto& [loss, p] : sorted)
    if (p > 0) {
      total += p;
      const double q = std::exp(std::log(p) - loss);
      const double relative = kRounding * (16 + 2 * std::abs(loss) + 2 * std::abs(std::log(p)));
      found.cells.push_back(atom(loss, p, q, relative));
      other += q;
      of_others += relative * q;
    }
  // What Q lacks are outcomes that P never has, and what P lacks may reveal everything: but for the rounding of a table
  // of doubles.
  const double rounding = 1e-14;
  const double lacking = std::max(0.0, static_cast<double>(1 - other));
  const double slack = lacking > 0 ? rounding + of_others : 0;
  const auto missing = static_cast<double>(1 - total - table.infinite.value());
  const double infinite = table.infinite.value() + (missing > rounding ? missing : 0);
  const double low = found.cells.empty() ? 0 : found.cells.front().low;
  const double high = found.cells.empty() ? 0 : found.cells.back().high;
  if (lacking > slack) found.cells.insert(found.cells.begin(), {-kInfinity, low, 0, lacking, 0, slack});
  if (infinite > 0) found.cells.push_back({high, kInfinity, infinite, 0, 0, 0});
  return found;
}

}  // namespace ghostshard::accountant
