// How often each unit may have been sampled, if the units are dealt to fixed groups and step t draws from group
// t mod b alone (cyclic Poisson sampling, arXiv:2306.08153, section 4). A release of step t is one round of its group;
// a unit takes part in its own group's rounds and in no others. So the guarantee of a unit is that of the group with
// the most rounds, each charged at the rate with which the group is sampled. Without groups (b = 1) every release is a
// round of every unit.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ghostshard::accountant {

class Rounds {
 public:
  // Throws std::invalid_argument unless groups >= 1.
  explicit Rounds(int64_t groups = 1);

  int64_t groups() const { return static_cast<int64_t>(by_group_.size()); }
  const std::vector<int64_t>& by_group() const { return by_group_; }
  // A release of this step, >= 0 (std::invalid_argument). Every attempt of a step is one. True if most() has grown.
  bool add(int64_t step);
  // Of the group with the most.
  int64_t most() const { return most_; }
  // The same after one release of each of the steps first, …, first + steps - 1.
  int64_t most_after(int64_t first, int64_t steps) const;

  nlohmann::json to_json() const;
  static Rounds from_json(const nlohmann::json& json);

 private:
  std::vector<int64_t> by_group_;
  int64_t most_ = 0;
};

// A ledger's header says into how many groups the run deals its units: "sampling_groups", 1 if it says nothing.
// std::invalid_argument unless it is a whole number from 1 to 10^6.
int64_t sampling_groups(const nlohmann::json& header);

}  // namespace ghostshard::accountant
