#include "accountant/rdp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "accountant/sampled_gaussian.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The grid of c = alpha - 1: eight points a decade from 1e-6 (needed from epsilon = 1e6 on) to 1e6 (needed
// below epsilon = 1e-4). Between its points the minimum is found by golden section.
constexpr int kPerDecade = 8;
constexpr int kFirst = -6 * kPerDecade;
constexpr int kLast = 6 * kPerDecade;
constexpr int kStart = 1 * kPerDecade;  // alpha = 11: in the middle of what runs choose
constexpr int kGoldenSteps = 32;        // 0.618^32 of a quarter decade: c to 1e-7, epsilon to its square

double order_at(double index) { return std::pow(10.0, index / kPerDecade); }

int64_t checked_sum(int64_t a, int64_t b) {
  if (b > std::numeric_limits<int64_t>::max() - a)
    throw std::invalid_argument("count must keep the total below 2^63, got " + std::to_string(b));
  return a + b;
}

int64_t checked_count(int64_t count) {
  if (!(count >= 0)) throw std::invalid_argument("count must be >= 0, got " + std::to_string(count));
  return count;
}

}  // namespace

double rdp_log_moment(const Event& event, double c) {
  if (!(c > 0 && c < kInfinity)) {
    std::ostringstream message;
    message << "alpha - 1 must be finite and > 0, got " << c;
    throw std::invalid_argument(message.str());
  }
  // For this mechanism removing is never the better direction (Mironov et al. 2019, Thm. 5); the maximum is
  // taken anyway, so that nothing rests on a theorem about another mechanism when one is added.
  const SampledGaussian release = sampled_gaussian(event);
  return std::max(log_moment_upper(Direction::kRemove, release, c), log_moment_upper(Direction::kAdd, release, c));
}

double rdp_to_epsilon(double c, double k, Delta delta) {
  const double rdp = k / c;
  const double shift = std::log1p(-1 / (1 + c));
  const double tail = std::log(delta.value()) / c;
  const double order = std::log1p(c) / c;
  const double rounding = 4 * std::numeric_limits<double>::epsilon() * (rdp + std::abs(shift) + std::abs(tail) + order);
  return rdp + shift - tail - order + rounding;
}

std::vector<double> opacus_orders() {
  std::vector<double> orders;
  for (int i = 1; i < 100; ++i) orders.push_back(1 + i / 10.0);
  for (int i = 12; i < 64; ++i) orders.push_back(i);
  return orders;
}

double rdp_epsilon_at_orders(std::span<const std::pair<Event, int64_t>> composed, std::span<const double> orders,
                             Delta delta) {
  int64_t total = 0;
  for (const auto& [event, count] : composed) total = checked_sum(total, checked_count(count));
  double best = kInfinity;
  for (const double alpha : orders) {
    if (!(alpha > 1 && alpha < kInfinity)) {
      std::ostringstream message;
      message << "order must be finite and > 1, got " << alpha;
      throw std::invalid_argument(message.str());
    }
    double k = 0;
    for (const auto& [event, count] : composed)
      if (count > 0) k += static_cast<double>(count) * rdp_log_moment(event, alpha - 1);
    best = std::min(best, rdp_to_epsilon(alpha - 1, k, delta));
  }
  return total == 0 ? 0 : std::max(best, 0.0);
}

class RdpCurve {
 public:
  explicit RdpCurve(const Event& event) : event_(event) {}

  double at_index(int index) {
    const std::lock_guard lock(mutex_);
    const auto [entry, missing] = known_.try_emplace(index, 0.0);
    if (missing) entry->second = rdp_log_moment(event_, order_at(index));
    return entry->second;
  }

 private:
  Event event_;
  std::mutex mutex_;
  std::unordered_map<int, double> known_;
};

RdpAccountant::RdpAccountant(Adjacency adjacency) {
  // Zero-out and add-or-remove have the same pair of distributions here; to_string refuses anything else.
  (void)to_string(adjacency);
}

void RdpAccountant::compose(const Event& event, int64_t count) {
  if (checked_count(count) == 0) return;
  int64_t total = count;
  for (const Charge& charge : charges_) total = checked_sum(total, charge.count);
  for (Charge& charge : charges_)
    if (charge.event == event) {
      charge.count += count;
      return;
    }
  charges_.push_back({event, count, std::make_shared<RdpCurve>(event)});
}

EpsilonBound RdpAccountant::epsilon(Delta delta) const {
  EpsilonBound bound;
  bound.accountant = name();
  if (charges_.empty()) {
    bound.detail = "nothing was released";
    return bound;
  }

  // ---- upper: the least over all orders. Every order gives a valid bound; the two stopping rules only save
  // time.
  const auto moment_at = [&](int index) {
    double k = 0;
    for (const Charge& charge : charges_) k += static_cast<double>(charge.count) * charge.curve->at_index(index);
    return k;
  };
  double best = kInfinity;
  double best_c = 0;
  int best_index = kStart;
  const auto consider = [&](double c, double k) {
    const double epsilon = rdp_to_epsilon(c, k, delta);
    if (!(epsilon < best)) return epsilon;
    best = epsilon;
    best_c = c;
    return epsilon;
  };
  for (int index = kStart; index <= kLast; ++index) {
    const double c = order_at(index);
    const double k = moment_at(index);
    if (consider(c, k) == best && best < kInfinity) best_index = index;
    if (!(k / c <= best + 1)) break;  // RDP grows with the order
  }
  for (int index = kStart - 1; index >= kFirst; --index) {
    const double c = order_at(index);
    if (rdp_to_epsilon(c, 0, delta) > best) break;  // the other terms shrink with the order
    if (consider(c, moment_at(index)) == best && best < kInfinity) best_index = index;
  }
  if (best < kInfinity) {
    const auto at = [&](double index) {
      const double c = order_at(index);
      double k = 0;
      for (const Charge& charge : charges_) k += static_cast<double>(charge.count) * rdp_log_moment(charge.event, c);
      return consider(c, k);
    };
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
  }
  bound.upper = bound.estimate = std::max(best, 0.0);

  // ---- lower: a part of what was released says no more than the whole.
  double precision = 0;  // of all unsampled Gaussians together: one Gaussian with 1/sigma² summed
  for (const Charge& charge : charges_) {
    const SampledGaussian release = sampled_gaussian(charge.event);
    if (release.q == 1)
      precision += static_cast<double>(charge.count) / (release.sigma * release.sigma);
    else
      bound.lower = std::max(bound.lower, single_release_epsilon_lower(release, delta));
  }
  if (precision > 0 && precision < kInfinity)
    bound.lower = std::max(bound.lower, single_release_epsilon_lower({1.0, 1 / std::sqrt(precision)}, delta));

  std::ostringstream detail;
  if (best < kInfinity)
    detail << "minimum over continuous orders, found at alpha = " << 1 + best_c;
  else
    detail << "no order gives a bound";
  detail << "; lower: exact epsilon of the worst single sampled release or of all unsampled ones together";
  bound.detail = detail.str();
  return bound;
}

std::unique_ptr<Accountant> RdpAccountant::clone() const { return std::make_unique<RdpAccountant>(*this); }

}  // namespace ghostshard::accountant
