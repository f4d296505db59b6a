#include "accountant/gaussian/separated_outcomes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "accountant/gaussian/least_double.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kMostMisplaced = 1e-7;  // of delta
constexpr double kCut = 1e-14;           // of delta: what the terms left out of one phase have together, on each side
constexpr size_t kMostTerms = 30'000;
constexpr double kFar = 38;            // standard deviations, beyond which erfc is no double
constexpr double kBeyondFar = 1e-300;  // more than the tail there, or at 37.9
constexpr double kMostOfZ = 2e-4;
constexpr int kMostSteps = 200;

double upper_tail(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

// Pr[N > v]/density(v), v > 0. From 20 on by its continued fraction, as in single_release.cpp.
double mills(double v) {
  if (v < 20) return upper_tail(v) * std::exp(v * v / 2) * std::sqrt(2 * std::numbers::pi);
  double fraction = v;
  for (int k = 20; k >= 1; --k) fraction = v + k / fraction;
  return 1 / fraction;
}

// The probability of an outcome on the wrong side of the best threshold, of all executions; a margin for a few hundred
// roundings of its exponents.
double misplaced(const ComposedRelease& phase) {
  const auto [q, sigma] = phase.release;
  const double threshold = 0.5 + sigma * sigma * (std::log1p(-q) - std::log(q));
  const double drawn = q * upper_tail((1 - threshold) / sigma);
  const double not_drawn = (1 - q) * upper_tail(threshold / sigma);
  return phase.count * (drawn + not_drawn + 2 * kLeast) * (1 + 1e-9);
}

// Probabilities of k among count executions, in turn from the first k. Beyond them there is `left_out` at most.
struct Binomial {
  double first = 0;
  std::vector<long double> probability;
  double left_out = 0;
};

// The shares of the next k in turn, of the first one, until all the others together have at most `cut`: as the ratios
// fall, these are at most a geometric series. Nothing if they are too many. ratio_at(i): of the i-th one's to the one
// before, 0 beyond the last.
struct Shares {
  std::vector<long double> each;
  double left_out = 0;
};
template <class Ratio>
std::optional<Shares> shares_by(const Ratio& ratio_at, double cut) {
  Shares shares;
  for (long double share = 1;;) {
    const long double ratio = ratio_at(static_cast<double>(shares.each.size()));
    const long double rest = ratio < 1 ? share * ratio / (1 - ratio) : std::numeric_limits<long double>::infinity();
    if (rest <= cut) {
      shares.left_out = static_cast<double>(rest) * (1 + 1e-6);
      return shares;
    }
    if (shares.each.size() >= kMostTerms) return std::nullopt;
    shares.each.push_back(share *= ratio);
  }
}

// From the most likely k on both ways. Its own share is 1 at first, so that none has more than it counts.
std::optional<Binomial> binomial(double count, double q, double cut) {
  const long double odds = static_cast<long double>(q) / (1.0L - q);
  const double middle = std::clamp(std::floor((count + 1) * q), 0.0, count);
  const auto below =
      shares_by([&](double i) -> long double { return (middle - i) / ((count - (middle - i) + 1.0L) * odds); }, cut);
  const auto above =
      shares_by([&](double i) -> long double { return (count - (middle + i)) / (middle + i + 1.0L) * odds; }, cut);
  if (!below || !above) return std::nullopt;
  Binomial found{.first = middle - static_cast<double>(below->each.size()),
                 .probability = {below->each.rbegin(), below->each.rend()},
                 .left_out = below->left_out + above->left_out};
  found.probability.push_back(1);
  found.probability.insert(found.probability.end(), above->each.begin(), above->each.end());
  long double sum = 0;
  for (const long double share : found.probability) sum += share;
  for (long double& share : found.probability) share /= sum;
  return found;
}

}  // namespace

bool SeparatedOutcomes::add_sampled(const ComposedRelease& phase, double cut) {
  const auto [q, sigma] = phase.release;
  const auto drawn = binomial(phase.count, q, cut);
  if (!drawn || drawn->probability.size() * terms_.size() > kMostTerms) return false;
  left_out_ += drawn->left_out;
  // Six roundings of each ratio and product, of the sum as of each part; and the whole sum is larger by what is left
  // out.
  of_weights_ += 16 * kLongRounding * static_cast<double>(drawn->probability.size() + 4) + 2 * drawn->left_out;
  const long double log_q = std::log(static_cast<long double>(q));
  const long double log_other = std::log1p(-static_cast<long double>(q));
  const long double precision = 1 / (static_cast<long double>(sigma) * sigma);
  std::vector<Term> all;
  for (const Term& term : terms_)
    for (size_t i = 0; i < drawn->probability.size(); ++i) {
      const auto weight = static_cast<double>(term.weight * drawn->probability[i]);
      if (weight * kMostTerms < cut) {
        left_out_ += weight + kLeast;
        continue;
      }
      const long double k = drawn->first + static_cast<double>(i);
      const long double shift = k * log_q + (phase.count - k) * log_other;  // neither part is above 0
      all.push_back({.shift = term.shift + shift,
                     .variance = term.variance + k * precision,
                     .size = term.size + std::abs(static_cast<double>(shift)),
                     .weight = weight});
    }
  terms_ = std::move(all);
  return true;
}

std::optional<SeparatedOutcomes> SeparatedOutcomes::make(const std::vector<ComposedRelease>& phases, Delta delta) {
  SeparatedOutcomes found;
  found.phases_ = static_cast<double>(phases.size());
  for (const ComposedRelease& phase : phases) {
    if (phase.is_table() || phase.is_mixture()) return std::nullopt;
    if (phase.release.q == 1) continue;
    // Binomial probabilities are of whole numbers, and those up to 2^53 are exact.
    if (!(phase.count < 0x1p53) || phase.count != std::floor(phase.count)) return std::nullopt;
    found.misplaced_ += misplaced(phase);
    if (!(found.misplaced_ <= kMostMisplaced * delta.value())) return std::nullopt;
  }
  Term none{.shift = 0, .variance = 0, .size = 0, .weight = 1};
  for (const ComposedRelease& phase : phases)
    if (phase.release.q == 1)
      none.variance += phase.count / (static_cast<long double>(phase.release.sigma) * phase.release.sigma);
  found.terms_ = {none};
  for (const ComposedRelease& phase : phases)
    if (phase.release.q < 1 && !found.add_sampled(phase, kCut * delta.value())) return std::nullopt;
  double square = 0;
  for (const Term& term : found.terms_)
    found.mean_ += term.weight * static_cast<double>(term.variance / 2 + term.shift);
  for (const Term& term : found.terms_) {
    const double away = static_cast<double>(term.variance / 2 + term.shift) - found.mean_;
    square += term.weight * (static_cast<double>(term.variance) + away * away);
  }
  found.deviation_ = std::sqrt(square);
  return found;
}

// Errors. The logarithms in s err by two units of long double of themselves, products and sums by one each; V by some
// units of itself, and one for each phase. So z errs by of_z, and by three units of double of itself where it becomes
// one and the argument of erfc. Pr[N > z] falls by a share of at most 1 + max(z, 0) for each unit of z, e^(-z²/2) by
// |z|, Mills' ratio by 1; erfc errs by a few units.
SeparatedOutcomes::Value SeparatedOutcomes::at(double epsilon) const {
  long double sum = 0;
  long double slope = 0;
  double error = 0;
  for (const auto& [shift, variance, size, weight] : terms_) {
    if (variance == 0) continue;  // no loss is above 0
    const long double deviation = std::sqrt(variance);
    const long double share = (epsilon - shift) / deviation;
    const auto z = static_cast<double>(share - deviation / 2);
    const auto far = static_cast<double>(share + deviation / 2);
    const double of_z =
        kLongRounding * (8 + phases_) *
            (static_cast<double>(share + deviation) + (epsilon + size) / static_cast<double>(deviation)) +
        3 * kRounding * std::abs(z);
    if (!(of_z < kMostOfZ)) return {0, 0, 0, 1};
    if (z > kFar) {
      error += kBeyondFar;
      continue;
    }
    const double gain = upper_tail(z);
    const double loss = z < -kFar ? 0 : std::exp(-z * z / 2) * (1 / std::sqrt(2 * std::numbers::pi)) * mills(far);
    const double of_gain = 1.01 * (1 + std::max(z, 0.0)) * of_z + 12 * kRounding;
    const double of_loss =
        1.01 * (1 + std::abs(z)) * of_z + kRounding * (24 + z * z + (far < 20 ? 8 * far * far : 0.0));
    sum += weight * static_cast<long double>(gain - loss);
    slope -= weight * static_cast<long double>(loss);
    error += weight * (gain * of_gain + (loss > 0 ? loss * of_loss : 0.0) + kRounding * (gain + loss)) + kBeyondFar;
  }
  Value value{.delta = static_cast<double>(sum), .slope = static_cast<double>(slope), .lower = 0, .upper = 1};
  const auto terms = static_cast<double>(terms_.size());
  const double all = error * (1 + 2 * terms * kRounding) +
                     (of_weights_ + 4 * kRounding + terms * kLongRounding) * (std::abs(value.delta) + 2 * error);
  value.lower = std::max(0.0, value.delta - all * (1 + 4 * kRounding));
  value.upper = std::min(1.0, value.delta + (all + misplaced_ + left_out_) * (1 + 4 * kRounding));
  return value;
}

namespace {

std::optional<DirectionBound> epsilon_of_one(Direction direction, const ComposedRelease& phase, Delta delta) {
  const Bracket found = single_phase_epsilon(direction, phase, delta);
  if (!(found.upper < kInfinity)) return std::nullopt;
  return DirectionBound{found.lower, found.lower + (found.upper - found.lower) / 2, found.upper,
                        "closed form of one release"};
}

std::optional<DirectionBound> separated_epsilon(const std::vector<ComposedRelease>& phases, Delta delta) {
  const auto outcomes = SeparatedOutcomes::make(phases, delta);
  if (!outcomes) return std::nullopt;
  if (outcomes->at(0).upper <= delta.value()) return DirectionBound{0, 0, 0, "closed form of separated outcomes"};
  const auto above = [&](const SeparatedOutcomes::Value& value) { return value.delta > delta.value(); };
  double low = 0;
  double reach = 2 * outcomes->deviation() + 1e-9;
  double high = std::max(outcomes->mean(), 0.0) + reach;
  while (above(outcomes->at(high))) {
    low = high;
    high += reach *= 2;
    if (!(high < 1e300)) return std::nullopt;
  }
  // Newton's method on log delta; the middle if a step leads out of the interval, as on a plateau between k and k + 1.
  double epsilon = high;
  SeparatedOutcomes::Value value = outcomes->at(epsilon);
  for (int i = 0; i < kMostSteps; ++i) {
    (above(value) ? low : high) = epsilon;
    const double move = value.slope < 0 && value.delta > 0
                            ? value.delta / -value.slope * std::log(value.delta / delta.value())
                            : kInfinity;
    double next = epsilon + move;
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    const double moved = std::abs(next - epsilon);
    epsilon = next;
    value = outcomes->at(epsilon);
    // Within the bracket a step leads nowhere; on a plateau the bracket says nothing.
    const double unknown = value.slope < 0 ? (value.upper - value.lower) / -value.slope : 0;
    if (moved <= std::clamp(unknown, 1e-15 * epsilon, 1e-12 * epsilon) || high - low <= 1e-15 * high) break;
  }
  DirectionBound found{0, epsilon, kInfinity, "closed form of separated outcomes"};
  const double width = value.slope < 0 ? (value.upper - value.lower) / -value.slope : 0;
  const double least = std::min(width, 1.0) + 2e-16 * epsilon + 1e-300;
  if (value.upper <= delta.value()) found.upper = epsilon;
  if (value.lower >= delta.value()) found.lower = epsilon;
  double margin = least;
  for (int i = 0; i < 60 && !(found.upper < kInfinity); ++i, margin *= 2)
    if (outcomes->at(epsilon + margin).upper <= delta.value()) found.upper = epsilon + margin;
  margin = least;
  for (int i = 0; i < 60 && found.lower == 0 && margin < epsilon; ++i, margin *= 2)
    if (outcomes->at(epsilon - margin).lower >= delta.value()) found.lower = epsilon - margin;
  if (!(found.upper < kInfinity)) return std::nullopt;
  return found;
}

}  // namespace

std::optional<DirectionBound> closed_form_epsilon(Direction direction, const std::vector<ComposedRelease>& phases,
                                                  Delta delta) {
  if (phases.size() == 1 && phases.front().count == 1) return epsilon_of_one(direction, phases.front(), delta);
  return direction == Direction::kRemove ? separated_epsilon(phases, delta) : std::nullopt;
}

}  // namespace ghostshard::accountant
