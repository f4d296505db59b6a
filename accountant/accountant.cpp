#include "accountant/accountant.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "accountant/contour.h"
#include "accountant/prv.h"
#include "accountant/rdp.h"

namespace ghostshard::accountant {

Accountant::Accountant(Adjacency adjacency) : adjacency_(adjacency) {
  (void)to_string(adjacency);  // refuses what is no adjacency
}

void Accountant::compose(const Event& event, int64_t count) {
  if (!(count >= 0)) throw std::invalid_argument("count must be >= 0, got " + std::to_string(count));
  if (count == 0) return;
  int64_t total = 0;
  for (const Charge& charge : charges_) total += charge.count;
  if (count > std::numeric_limits<int64_t>::max() - total)
    throw std::invalid_argument("count must keep the total below 2^63, got " + std::to_string(count));
  const auto same =
      std::find_if(charges_.begin(), charges_.end(), [&](const Charge& charge) { return charge.event == event; });
  if (same != charges_.end()) {
    same->count += count;
    return;
  }
  charges_.reserve(charges_.size() + 1);  // nothing can fail between admitting and charging
  admit(event);
  charges_.push_back({event, count});
}

EpsilonBound Accountant::epsilon(Delta delta, Effort effort) const {
  EpsilonBound bound;
  bound.direction = "both";
  bound.detail = "nothing was released";
  if (!charges_.empty()) bound = bound_epsilon(delta, effort);
  bound.accountant = name();
  return bound;
}

DeltaBound Accountant::delta(Epsilon epsilon, Effort effort) const {
  DeltaBound bound{.lower = 0, .estimate = 0, .upper = 0, .accountant = "", .direction = "both", .detail = ""};
  bound.detail = "nothing was released";
  if (!charges_.empty()) bound = bound_delta(epsilon, effort);
  bound.accountant = name();
  return bound;
}

std::unique_ptr<Accountant> make_accountant(const std::string& name, Adjacency adjacency) {
  if (name == "contour") return std::make_unique<ContourAccountant>(adjacency);
  if (name == "prv") return std::make_unique<PrvAccountant>(adjacency);
  if (name == "rdp") return std::make_unique<RdpAccountant>(adjacency);
  throw std::invalid_argument("accountant must be one of contour, prv, rdp; got \"" + name + '"');
}

}  // namespace ghostshard::accountant
