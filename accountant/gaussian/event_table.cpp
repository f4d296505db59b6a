#include "accountant/gaussian/event_table.h"

#include <map>
#include <mutex>
#include <utility>

#include "accountant/gaussian/tuning.h"
#include "accountant/losses/event_pair.h"

namespace ghostshard::accountant {

std::shared_ptr<const DominatingPair> event_table(const Event& event, Adjacency adjacency, const std::string& engine) {
  if (!is_tuning(event)) return loss_table(event, adjacency, engine);
  require_valid(event);
  static std::mutex mutex;
  static std::map<std::pair<EventKey, Adjacency>, std::shared_ptr<const DominatingPair>> known;
  constexpr size_t kMostKept = 64;
  const std::pair key(key_of(event), adjacency);
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMostKept) known.clear();
  return known[key] = std::make_shared<const DominatingPair>(dominating_pair_of(tuning_losses(event, adjacency)));
}

}  // namespace ghostshard::accountant
