// Losses of Gaussian noise on two mixtures of means, by cells of outcomes so narrow that the mesh is some thousandths
// of the deviation of a loss, however small that is.
//
// That one dimension suffices: let P = Σ w_S·N(v_S, sigma²) over vectors with |v_S| <= s_S. Under N(0, sigma²) its
// density relative to that is Σ w_S·e^(G_S - |v_S|²/(2 sigma²)), the G_S jointly Gaussian with deviations |v_S|/sigma.
// Of all joint laws with these marginals, the one in which all grow together (one dimension, all v_S on one side) makes
// the sum largest in convex order (Dhaene et al. 2002), and each term grows in convex order with |v_S|. Both directions
// of the hockey-stick divergence are convex functions of this sum; so s_S on a line is the worst case (cf.
// arXiv:2310.15526, Lemma 4.5).
#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/losses/laws.h"
#include "accountant/losses/normal_mass.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kOutcomes = 16384;
constexpr double kReach = 20;       // standard deviations on either side
constexpr double kOutside = 1e-88;  // more than the normal tail beyond

// log Σ w·e^(at·(2x - at)/(2 sigma²)): the density relative to N(0, sigma²).
double log_density(const NormalMixture& mixture, double sigma, double x) {
  const double half = 0.5 / (sigma * sigma);
  double top = -kInfinity;
  double bottom = kInfinity;
  for (const double at : mixture.at) {
    top = std::max(top, at * (2 * x - at) * half);
    bottom = std::min(bottom, at * (2 * x - at) * half);
  }
  if (top < 1 && bottom > -1) {  // log(1 + Σ w·(e^… - 1)): the weights add up to 1
    double excess = 0;
    for (size_t i = 0; i < mixture.at.size(); ++i)
      excess += mixture.weights[i] * std::expm1(mixture.at[i] * (2 * x - mixture.at[i]) * half);
    return std::log1p(excess);
  }
  double sum = 0;
  for (size_t i = 0; i < mixture.at.size(); ++i)
    sum += mixture.weights[i] * std::exp(mixture.at[i] * (2 * x - mixture.at[i]) * half - top);
  return top + std::log(sum);
}

// Ends in deviations err by a rounding of themselves, which is a share of a narrow cell.
Mass mass_of(const NormalMixture& mixture, double sigma, double low, double high) {
  Mass sum;
  for (size_t i = 0; i < mixture.at.size(); ++i) {
    const double from = low - mixture.at[i];
    const double to = high - mixture.at[i];
    const Mass one = normal_mass(from / sigma, to / sigma);
    const double ends = 2 * kRounding * (std::abs(from) + std::abs(to)) / (high - low);
    sum.value += mixture.weights[i] * one.value;
    sum.error += mixture.weights[i] * (one.error + ends * one.value);
    if (!mixture.errors.empty()) sum.error += mixture.errors[i] * (one.value + one.error);
  }
  sum.error += 4 * kRounding * static_cast<double>(mixture.at.size()) * sum.value;
  return sum;
}

// A boundary's loss is Σ share·exponent, but for a logarithm; each exponent errs by a few roundings of itself. Negative
// ones have a share of e^exponent, the others exceed the loss by no more than -log weight.
double loss_error(const NormalMixture& p, const NormalMixture& q) {
  double largest = 0;
  double beside_one = 0;  // by which weights do not add up to 1, as log_density takes them to
  for (const auto* mixture : {&p, &q}) {
    double sum = 0;
    for (const double weight : mixture->weights) {
      if (weight > 0) largest = std::max(largest, -std::log(weight));
      sum += weight;
    }
    beside_one += std::abs(sum - 1) + kRounding * static_cast<double>(mixture->weights.size());
  }
  return kRounding * (32 + 16 * largest) + 4 * beside_one;
}

// The loss at the next boundary, which is no less. What is too large for a double may be as large as it likes.
double not_below(double loss, double next) { return std::isnan(next) ? kInfinity : std::max(loss, next); }

}  // namespace

LossCells normal_mixture_losses(const NormalMixture& p, const NormalMixture& q, double sigma) {
  const auto [p_low, p_high] = std::minmax_element(p.at.begin(), p.at.end());
  const auto [q_low, q_high] = std::minmax_element(q.at.begin(), q.at.end());
  const double first = std::min(*p_low, *q_low) - kReach * sigma;
  const double last = std::max(*p_high, *q_high) + kReach * sigma;
  LossCells found{{}, loss_error(p, q)};
  const auto loss_at = [&](double x) { return log_density(p, sigma, x) - log_density(q, sigma, x); };
  double low = first;
  double loss = not_below(-kInfinity, loss_at(low));
  found.cells.push_back({-kInfinity, loss, 0, 0, kOutside, kOutside});
  for (int i = 1; i <= kOutcomes; ++i) {
    const double high = first + (last - first) * i / kOutcomes;
    const double next = not_below(loss, loss_at(high));
    const Mass of_p = mass_of(p, sigma, low, high);
    const Mass of_q = mass_of(q, sigma, low, high);
    found.cells.push_back({loss, next, of_p.value, of_q.value, of_p.error, of_q.error});
    low = high;
    loss = next;
  }
  found.cells.push_back({loss, kInfinity, 0, 0, kOutside, kOutside});
  return found;
}

// The batch holds the unit with probability g = rate. Let p1, q1 be the outcomes if it does, under both data sets, and
// p0 if it does not, the same under both. p1 and p0 come from batches that differ in one record, as do p1 and q1. So
// with the base pair (P, Q) = (N(2, sigma²), N(0, sigma²)) and Balle et al. 2018 (arXiv:1807.01647, Thm. 2 and 11)
// delta at l >= 0 is at most that of ((1-g)·Q + g·P, Q). At l < 0 it is that of the two data sets exchanged, (P,
// (1-g)·P + g·Q). The larger of both is convex in e^l: positive losses come from the first pair, negative ones from the
// second, and what is left loses nothing (Zhu et al. 2022, arXiv:2106.08567, Prop. 30).
LossCells without_replacement_losses(double rate, double sigma) {
  if (rate == 1) return normal_mixture_losses({{1}, {2}}, {{1}, {0}}, sigma);
  const NormalMixture p{{1 - rate, rate}, {0, 2}};
  const NormalMixture q{{1}, {0}};
  LossCells found{{}, loss_error(p, q)};
  std::vector<LossCell> positive;
  Mass left{1, 0};         // that loses nothing
  const double first = 1;  // where the two densities are the same
  const double last = 2 + kReach * sigma;
  double low = first;
  double loss = 0;
  for (int i = 1; i <= kOutcomes; ++i) {
    const double high = first + (last - first) * i / kOutcomes;
    const double next = not_below(loss, log_density(p, sigma, high));
    const Mass of_p = mass_of(p, sigma, low, high);
    const Mass of_q = mass_of(q, sigma, low, high);
    positive.push_back({loss, next, of_p.value, of_q.value, of_p.error, of_q.error});
    left.value -= of_p.value + of_q.value;
    left.error += of_p.error + of_q.error + kRounding;
    low = high;
    loss = next;
  }
  found.cells.push_back({-kInfinity, -loss, 0, 0, kOutside, kOutside});
  for (auto cell = positive.rbegin(); cell != positive.rend(); ++cell)
    found.cells.push_back({-cell->high, -cell->low, cell->q, cell->p, cell->q_error, cell->p_error});
  const double nothing = std::max(0.0, left.value);
  found.cells.push_back({0, 0, nothing, nothing, left.error, left.error});
  found.cells.insert(found.cells.end(), positive.begin(), positive.end());
  found.cells.push_back({loss, kInfinity, 0, 0, kOutside, kOutside});
  return found;
}

}  // namespace ghostshard::accountant
