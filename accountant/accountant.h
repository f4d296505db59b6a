// An accountant composes events and bounds epsilon.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "accountant/events.h"
#include "accountant/types.h"

namespace ghostshard::accountant {

// lower <= true epsilon <= upper. `upper` is what is reported. upper is +infinity where nothing can be said.
struct EpsilonBound {
  double lower = 0;
  double estimate = 0;
  double upper = 0;
  std::string accountant;  // "rdp", later "contour", "prv"
  std::string detail;      // e.g. the order at which the minimum was found
};

class Accountant {
 public:
  virtual ~Accountant() = default;
  // Charges `count` further executions of the event. The multiplication happens here and nowhere else.
  virtual void compose(const Event& event, int64_t count) = 0;
  virtual EpsilonBound epsilon(Delta delta) const = 0;
  virtual std::unique_ptr<Accountant> clone() const = 0;
  virtual std::string name() const = 0;
};

// "rdp". Throws std::invalid_argument listing the known names, also for an adjacency the engine cannot bound.
std::unique_ptr<Accountant> make_accountant(const std::string& name, Adjacency adjacency);

}  // namespace ghostshard::accountant
