#include "accountant/engines/rdp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "accountant/gaussian/event_moment.h"
#include "accountant/gaussian/event_table.h"
#include "accountant/gaussian/least_double.h"
#include "accountant/gaussian/releases.h"
#include "accountant/gaussian/sampled_gaussian.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/losses/event_pair.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The grid of c = alpha - 1: eight points a decade from 1e-6 (needed from epsilon = 1e6 on) to 1e6 (needed
// below epsilon = 1e-4). Between its points the minimum is found by golden section.
constexpr int kPerDecade = 8;
constexpr int kFirst = -6 * kPerDecade;
constexpr int kLast = 6 * kPerDecade;
constexpr int kStart = 1 * kPerDecade;  // alpha = 11: in the middle of the orders that runs need
constexpr size_t kMostPhases = 128;     // distinct sampled releases
constexpr int kGoldenSteps = 32;        // 0.618^32 of a quarter decade: c to 1e-7, epsilon to its square

double order_at(double index) { return std::pow(10.0, index / kPerDecade); }

// The probability that some execution has an infinite loss, which no moment bounds: delta pays for it.
double infinite_of(const std::vector<Charge>& charges, Adjacency adjacency) {
  double sum = 0;
  for (const Charge& charge : charges)
    sum += static_cast<double>(charge.count) * infinite_loss(charge.event, adjacency);
  return sum * (1 + 1e-12);
}

}  // namespace

double rdp_log_moment(const Event& event, double c, Adjacency adjacency) {
  if (!(c > 0 && c < kInfinity)) {
    std::ostringstream message;
    message << "alpha - 1 must be finite and > 0, got " << c;
    throw std::invalid_argument(message.str());
  }
  return event_log_moment(event, c, adjacency);
}

double rdp_to_epsilon(double c, double k, Delta delta) { return epsilon_of_moment(c, k, std::log(delta.value())); }

double rdp_to_log_delta(double c, double k, Epsilon epsilon) { return log_delta_of_moment(c, k, epsilon.value()); }

class RdpCurve {
 public:
  RdpCurve(const Event& event, Adjacency adjacency) : event_(event), adjacency_(adjacency) {}

  double at_index(int index) {
    const std::lock_guard lock(mutex_);
    const auto [entry, missing] = known_.try_emplace(index, 0.0);
    if (missing) entry->second = at(order_at(index));
    return entry->second;
  }
  double at(double c) const { return rdp_log_moment(event_, c, adjacency_); }

 private:
  Event event_;
  Adjacency adjacency_;
  std::mutex mutex_;
  std::unordered_map<int, double> known_;
};

namespace {

// The least of objective(c, K(c)) over orders: upwards and downwards on the grid until stop says that no better one
// can follow, then golden section around the best. Any order gives a valid bound, so this may only be loose.
struct Minimum {
  double value = kInfinity;
  double c = 0;
};
template <class Objective, class MomentAtIndex, class Moment, class StopUp, class StopDown>
Minimum minimize(const Objective& objective, const MomentAtIndex& moment_at_index, const Moment& moment_at,
                 const StopUp& stop_up, const StopDown& stop_down) {
  Minimum best;
  int best_index = kStart;
  const auto consider = [&](double c, double k) {
    const double value = objective(c, k);
    if (!(value < best.value)) return value;
    best = {value, c};
    return value;
  };
  for (int index = kStart; index <= kLast; ++index) {
    const double c = order_at(index);
    const double k = moment_at_index(index);
    if (consider(c, k) == best.value && best.value < kInfinity) best_index = index;
    if (stop_up(c, k, best.value)) break;
  }
  for (int index = kStart - 1; index >= kFirst; --index) {
    const double c = order_at(index);
    if (stop_down(c, best.value)) break;
    if (consider(c, moment_at_index(index)) == best.value && best.value < kInfinity) best_index = index;
  }
  if (!(best.value < kInfinity)) return best;
  const auto at = [&](double index) { return consider(order_at(index), moment_at(order_at(index))); };
  constexpr double kGolden = 0.6180339887498949;
  double low = best_index - 1;
  double high = best_index + 1;
  double left = high - kGolden * (high - low);
  double right = low + kGolden * (high - low);
  double at_left = at(left);
  double at_right = at(right);
  for (int step = 0; step < kGoldenSteps; ++step) {
    if (at_left < at_right) {
      high = std::exchange(right, left);
      at_right = at_left;
      left = high - kGolden * (high - low);
      at_left = at(left);
    } else {
      low = std::exchange(left, right);
      at_left = at_right;
      right = low + kGolden * (high - low);
      at_right = at(right);
    }
  }
  return best;
}

std::string describe(const Minimum& best) {
  std::ostringstream detail;
  if (best.value < kInfinity)
    detail << "minimum over continuous orders, found at alpha = " << 1 + best.c;
  else
    detail << "no order gives a bound";
  detail << "; lower: exact value for the worst single sampled release or for all unsampled ones together";
  return detail.str();
}

// No member of the family that releases.h puts together.
bool has_own_curve(const Event& event, Adjacency adjacency) {
  return has_loss_table(event, adjacency) || std::holds_alternative<FixedSizeGaussianEvent>(event) ||
         std::holds_alternative<TruncatedPoissonGaussianEvent>(event);
}

// A part of the releases reveals no more than the whole: the sampled releases one by one, the unsampled Gaussians
// together (one Gaussian with 1/sigma² summed). Sigmas are rounded up, so that lower ends are lower ends.
std::vector<ComposedRelease> parts(const std::vector<Charge>& charges, Adjacency adjacency) {
  std::vector<Charge> known;
  for (const Charge& charge : charges)
    if (!has_own_curve(charge.event, adjacency)) known.push_back(charge);
  return composed_releases(known, adjacency, "rdp", kMostPhases, kMostPhases).more_private;
}

}  // namespace

// The moments of all charges together.
class RdpAccountant::Terms {
 public:
  // Many distinct sampled releases: similar ones count as the one with the larger q and the smaller sigma (releases.h).
  Terms(const std::vector<Charge>& charges, const std::vector<std::shared_ptr<RdpCurve>>& curves, Adjacency adjacency) {
    const bool coarse = charges.size() > kMostPhases;
    std::vector<Charge> sampled;
    for (size_t i = 0; i < charges.size(); ++i) {
      if (coarse && !has_own_curve(charges[i].event, adjacency))
        sampled.push_back(charges[i]);
      else
        terms_.push_back({curves[i], static_cast<double>(charges[i].count)});
    }
    for (const ComposedRelease& phase :
         composed_releases(sampled, adjacency, "rdp", kMostPhases, kMostPhases).less_private) {
      const auto [q, noise] = phase.release;
      const NoiseMultiplier sigma(noise);
      const Event event = q == 1 ? Event(GaussianEvent{sigma}) : Event(PoissonGaussianEvent{SamplingRate(q), sigma});
      terms_.push_back({std::make_shared<RdpCurve>(event, Adjacency::kZeroOut), phase.count});
    }
  }

  double at_index(int index) const {
    return sum([&](RdpCurve& curve) { return curve.at_index(index); });
  }
  double at(double c) const {
    return sum([&](const RdpCurve& curve) { return curve.at(c); });
  }

 private:
  struct Term {
    std::shared_ptr<RdpCurve> curve;
    double count;
  };
  // Rounded up: each product errs by two roundings of itself, each sum by one.
  template <class Moment>
  double sum(const Moment& moment) const {
    double k = 0;
    for (const Term& term : terms_) k += term.count * moment(*term.curve);
    return k * (1 + std::numeric_limits<double>::epsilon() * (4 + static_cast<double>(terms_.size())));
  }
  std::vector<Term> terms_;
};

void RdpAccountant::admit(const Event& event) {
  require_valid(event);
  const bool replace = adjacency() == Adjacency::kReplaceOne;
  if (has_loss_table(event, adjacency()))
    (void)event_table(event, adjacency(), name());
  else if (!(replace ? std::holds_alternative<FixedSizeGaussianEvent>(event)
                     : std::holds_alternative<TruncatedPoissonGaussianEvent>(event)))
    (void)sampled_gaussian(event, adjacency(), name());
  curves_.push_back(std::make_shared<RdpCurve>(event, adjacency()));
}

EpsilonBound RdpAccountant::bound_epsilon(Delta given, Effort) const {
  EpsilonBound bound;
  bound.direction = "both";
  const double left = given.value() - infinite_of(charges(), adjacency());
  if (!(left > 0)) {
    bound.upper = bound.estimate = kInfinity;
    bound.detail = "an infinite loss is likelier than delta";
    return bound;
  }
  const Delta delta(left);
  const Terms terms(charges(), curves_, adjacency());
  const Minimum best = minimize(
      [&](double c, double k) { return rdp_to_epsilon(c, k, delta); }, [&](int index) { return terms.at_index(index); },
      [&](double c) { return terms.at(c); },
      [](double c, double k, double so_far) { return !(k / c <= so_far + 1); },        // RDP grows with the order
      [&](double c, double so_far) { return rdp_to_epsilon(c, 0, delta) > so_far; });  // the rest shrinks with it
  bound.upper = bound.estimate = std::max(best.value, 0.0);
  for (const ComposedRelease& part : parts(charges(), adjacency()))
    bound.lower = std::max(bound.lower, single_release_epsilon_lower(part.release, given));
  bound.detail = describe(best);
  return bound;
}

DeltaBound RdpAccountant::bound_delta(Epsilon epsilon, Effort) const {
  DeltaBound bound;
  bound.direction = "both";
  const Terms terms(charges(), curves_, adjacency());
  // The objective is convex in the order: past its minimum it only grows.
  const Minimum best =
      minimize([&](double c, double k) { return rdp_to_log_delta(c, k, epsilon); },
               [&](int index) { return terms.at_index(index); }, [&](double c) { return terms.at(c); },
               [&](double c, double k, double so_far) { return !(rdp_to_log_delta(c, k, epsilon) <= so_far + 1); },
               [](double, double) { return false; });
  bound.upper = bound.estimate =
      std::min(1.0, std::exp(best.value) * (1 + 1e-15) + infinite_of(charges(), adjacency()) + kLeast);
  for (const ComposedRelease& part : parts(charges(), adjacency()))
    for (const Direction direction : {Direction::kRemove, Direction::kAdd})
      bound.lower = std::max(bound.lower, single_release_delta(direction, part.release, epsilon.value()).lower);
  bound.detail = describe(best);
  return bound;
}

std::unique_ptr<Accountant> RdpAccountant::clone() const { return std::make_unique<RdpAccountant>(*this); }

RdpAccountant rdp_of(const std::vector<Charge>& charges, Adjacency adjacency) {
  RdpAccountant engine(adjacency);
  for (const Charge& charge : charges) engine.compose(charge.event, charge.count);
  return engine;
}

}  // namespace ghostshard::accountant
