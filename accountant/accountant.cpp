#include "accountant/accountant.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace ghostshard::accountant {

Accountant::Accountant(Adjacency adjacency) : adjacency_(adjacency) {
  (void)to_string(adjacency);  // throws if there is no such adjacency
}

namespace {

// Upper bound on the logarithm of the probability that more than cap of n units are drawn.
double log_more_than(int64_t cap, int64_t n, double q) {
  if (cap >= n) return -std::numeric_limits<double>::infinity();
  const double a = static_cast<double>(cap + 1) / static_cast<double>(n);
  if (!(a > q)) return 0;
  const double kl = a * std::log(a / q) + (a < 1 ? (1 - a) * (std::log1p(-a) - std::log1p(-q)) : 0.0);
  // Both terms' roundings, relative to their sizes: they cancel where a is close to q.
  const double rounding = 1e-14 * (a * std::abs(std::log(a / q)) + 1);
  return std::min(0.0, -static_cast<double>(n) * (kl - rounding));
}

}  // namespace

void Accountant::compose(const Event& event, int64_t count) {
  const auto* truncated = std::get_if<TruncatedPoissonGaussianEvent>(&event);
  if (truncated != nullptr && adjacency_ != Adjacency::kReplaceOne && count > 0 && !bounds_truncation()) {
    require_valid(event);
    const int64_t units = truncated->units;
    const int64_t most =
        adjacency_ == Adjacency::kAddOrRemove && units < std::numeric_limits<int64_t>::max() ? units + 1 : units;
    const double log_tau = log_more_than(truncated->cap, most, truncated->q.value());
    // e^-800 is not 0: multiplied by e^epsilon it may count.
    const double tau = truncated->cap >= most ? 0 : std::max(std::exp(log_tau), std::numeric_limits<double>::min());
    compose(PoissonGaussianEvent{truncated->q, truncated->sigma}, count);
    switched_ += static_cast<double>(count) * tau * (1 + 1e-12);
    return;
  }
  if (!(count >= 0)) throw std::invalid_argument("count must be >= 0, got " + std::to_string(count));
  if (count == 0) return;
  if (count > std::numeric_limits<int64_t>::max() - total_)
    throw std::invalid_argument("count must keep the total below 2^63, got " + std::to_string(count));
  const auto [entry, is_new] = index_.try_emplace(key_of(event), charges_.size());
  if (is_new) {
    try {
      charges_.push_back({event, 0});
      admit(event);
    } catch (...) {  // nothing was charged
      charges_.resize(entry->second, {event, 0});
      index_.erase(entry);
      throw;
    }
  }
  charges_[entry->second].count += count;
  total_ += count;
}

EpsilonBound Accountant::epsilon(Delta delta, Effort effort) const {
  EpsilonBound bound;
  bound.direction = "both";
  bound.detail = "nothing was released";
  if (!charges_.empty()) bound = switched_ > 0 ? epsilon_beside_switching(delta, effort) : bound_epsilon(delta, effort);
  bound.accountant = name();
  return bound;
}

// Any delta' with delta' + s·(1 + e^epsilon(delta')) <= delta gives a bound. The largest is the best. The search misses
// it by a few percent of the share that truncation takes.
EpsilonBound Accountant::epsilon_beside_switching(Delta delta, Effort effort) const {
  const auto left = [&](double epsilon) { return delta.value() - switched_ * (1 + std::exp(epsilon)) * (1 + 1e-12); };
  EpsilonBound found;
  found.upper = found.estimate = std::numeric_limits<double>::infinity();
  found.direction = "both";
  found.detail = "truncation is too likely for any bound at this delta";
  double share = delta.value();
  for (int i = 0; i < 40 && share > 0; ++i) {
    EpsilonBound candidate = bound_epsilon(Delta(share), effort);
    const double allowed = left(candidate.upper);
    if (share <= allowed) {
      candidate.lower = 0;
      candidate.estimate = std::min(candidate.estimate, candidate.upper);
      std::ostringstream text;
      text << "; truncation takes " << delta.value() - share << " of delta";
      candidate.detail += text.str();
      return candidate;
    }
    // The next share is smaller, and its epsilon larger: take a little less than this one would leave.
    share = allowed > 0 ? std::min(0.5 * share + 0.5 * allowed, allowed) - 0.02 * (share - allowed) : share / 4;
    if (!(share > delta.value() * 1e-6)) break;
  }
  return found;
}

DeltaBound Accountant::delta(Epsilon epsilon, Effort effort) const {
  DeltaBound bound{.lower = 0, .estimate = 0, .upper = 0, .accountant = "", .direction = "both", .detail = ""};
  bound.detail = "nothing was released";
  if (!charges_.empty()) bound = bound_delta(epsilon, effort);
  if (switched_ > 0) {
    bound.lower = 0;
    bound.upper = std::min(1.0, bound.upper + switched_ * (1 + std::exp(epsilon.value())) * (1 + 1e-12));
    bound.detail += "; with what truncation may add";
  }
  bound.accountant = name();
  return bound;
}

}  // namespace ghostshard::accountant
