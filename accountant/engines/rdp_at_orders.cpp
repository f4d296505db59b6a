#include "accountant/rdp_at_orders.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "accountant/engines/rdp.h"
#include "accountant/gaussian/event_moment.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

std::vector<double> opacus_orders() {
  std::vector<double> orders;
  for (int i = 1; i < 100; ++i) orders.push_back(1 + i / 10.0);
  for (int i = 12; i < 64; ++i) orders.push_back(i);
  return orders;
}

double rdp_epsilon_at_orders(std::span<const std::pair<Event, int64_t>> composed, std::span<const double> orders,
                             Delta delta) {
  int64_t total = 0;
  double infinite = 0;  // the probability of an infinite loss, which no moment bounds: delta pays for it
  for (const auto& [event, count] : composed) {
    total = checked_sum(total, checked_count(count));
    if (count > 0) infinite += static_cast<double>(count) * infinite_loss(event, Adjacency::kZeroOut);
  }
  const double left = delta.value() - infinite * (1 + 1e-12);
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
    k *= 1 + std::numeric_limits<double>::epsilon() * (4 + static_cast<double>(composed.size()));
    if (left > 0) best = std::min(best, rdp_to_epsilon(alpha - 1, k, Delta(left)));
  }
  return total == 0 ? 0 : std::max(best, 0.0);
}

}  // namespace ghostshard::accountant
