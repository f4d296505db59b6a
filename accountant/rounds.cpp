#include "accountant/rounds.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace ghostshard::accountant {
namespace {

constexpr int64_t kMostGroups = 1'000'000;

}  // namespace

Rounds::Rounds(int64_t groups) {
  if (!(groups >= 1)) throw std::invalid_argument("groups must be >= 1, got " + std::to_string(groups));
  by_group_.assign(static_cast<size_t>(groups), 0);
}

bool Rounds::add(int64_t step) {
  if (!(step >= 0)) throw std::invalid_argument("a round's step must be >= 0, got " + std::to_string(step));
  const int64_t count = ++by_group_[static_cast<size_t>(step % groups())];
  if (count <= most_) return false;
  most_ = count;
  return true;
}

int64_t Rounds::most_after(int64_t first, int64_t steps) const {
  int64_t most = 0;
  for (int64_t group = 0; group < groups(); ++group) {
    // The steps below s that fall to this group: ceil((s - group)/groups).
    const auto below = [&](int64_t s) { return s <= group ? 0 : (s - group - 1) / groups() + 1; };
    most = std::max(most, by_group_[static_cast<size_t>(group)] + below(first + steps) - below(first));
  }
  return most;
}

nlohmann::json Rounds::to_json() const { return by_group_; }

Rounds Rounds::from_json(const nlohmann::json& json) {
  Rounds rounds(static_cast<int64_t>(json.size()));
  rounds.by_group_ = json.get<std::vector<int64_t>>();
  rounds.most_ = *std::max_element(rounds.by_group_.begin(), rounds.by_group_.end());
  return rounds;
}

int64_t sampling_groups(const nlohmann::json& header) {
  const auto stated = header.find("sampling_groups");
  if (stated == header.end()) return 1;
  const bool whole = stated->is_number_unsigned() && stated->get<uint64_t>() >= 1 &&
                     stated->get<uint64_t>() <= static_cast<uint64_t>(kMostGroups);
  if (!whole) {
    throw std::invalid_argument("sampling_groups must be a whole number from 1 to 1000000, got " + stated->dump());
  }
  return stated->get<int64_t>();
}

}  // namespace ghostshard::accountant
