// An accountant composes events and bounds epsilon at a delta, or delta at an epsilon.
//
// Both directions of every event (a unit removed, a unit added) are bounded and the larger is returned: that removing
// is the worse one is no theorem for compositions (Lebeda et al., arXiv:2405.20769).
//
// Every number called upper is proven: Effort only says how much time may go into making it tight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accountant/events.h"
#include "accountant/types.h"

namespace ghostshard::accountant {

// lower <= true epsilon <= upper, and lower <= estimate <= upper. `upper` is what is reported; `estimate` is the most
// likely value. upper is +infinity where nothing can be said.
struct EpsilonBound {
  double lower = 0;
  double estimate = 0;
  double upper = 0;
  std::string accountant;  // "contour", "prv", "rdp"
  std::string direction;   // which neighbour decided: "remove", "add", or "both" where they are the same
  std::string detail;      // how: e.g. the order at which the minimum was found, mesh and node counts
};

// lower <= true delta <= upper, all in [0, 1].
struct DeltaBound {
  double lower = 0;
  double estimate = 0;
  double upper = 1;
  std::string accountant;
  std::string direction;
  std::string detail;
};

// kQuick: milliseconds, some tens of them in rare cases, for a number shown after every step or a point of a chart.
// kTight: the bracket is as narrow as the engine can make it, up to seconds in rare cases.
// kUpper: the upper end about as low as kTight's, sooner; the lower end may be 0. For who seeks what a budget allows.
enum class Effort { kQuick, kTight, kUpper };

// `count` executions of one event. An accountant holds one of these per distinct event.
struct Charge {
  Event event;
  int64_t count;
};

class Accountant {
 public:
  virtual ~Accountant() = default;

  // Charges `count` further executions of the event. The multiplication happens here and nowhere else, for all events
  // and engines. Throws std::invalid_argument for a negative count, a total of 2^63 or more, and an event that this
  // engine cannot bound under this adjacency; what was charged before then stays as it was.
  void compose(const Event& event, int64_t count);

  EpsilonBound epsilon(Delta delta, Effort effort = Effort::kTight) const;
  DeltaBound delta(Epsilon epsilon, Effort effort = Effort::kTight) const;

  virtual std::unique_ptr<Accountant> clone() const = 0;
  virtual std::string name() const = 0;

  Adjacency adjacency() const { return adjacency_; }
  // What the engine bounds: a truncated Poisson event stands here as the Poisson event that it is reduced to.
  const std::vector<Charge>& charges() const { return charges_; }

 protected:
  explicit Accountant(Adjacency adjacency);
  Accountant(const Accountant&) = default;
  Accountant& operator=(const Accountant&) = default;

 private:
  // Called once for each distinct event before it is charged; throws std::invalid_argument where the engine cannot
  // bound it.
  virtual void admit(const Event& event) = 0;
  // Called only where something was charged; the name is filled in by the caller.
  virtual EpsilonBound bound_epsilon(Delta delta, Effort effort) const = 0;
  virtual DeltaBound bound_delta(Epsilon epsilon, Effort effort) const = 0;

  EpsilonBound epsilon_beside_switching(Delta delta, Effort effort) const;

  Adjacency adjacency_;
  std::vector<Charge> charges_;
  double switched_ = 0;  // s of truncated sampling, below
};

// "contour" (the default everywhere), "prv" or "rdp". Throws std::invalid_argument listing the known names, also for
// an adjacency that does not exist. What can be bounded:
//
//   event                          zero-out, add-or-remove    replace-one
//   gaussian                       contour prv rdp            contour prv rdp (sensitivity 2: sigma is halved)
//   poisson_gaussian               contour prv rdp            refused
//   poisson_adaptive_clipping      contour prv rdp            refused
//   fixed_size_gaussian            refused                    rdp
//   truncated_poisson_gaussian     contour prv rdp            refused
//
// Truncated Poisson sampling is accounted as Poisson sampling that is replaced by something else with the probability
// tau of drawing more than the cap: over T steps outcomes differ in total variation by at most s = T·tau on either data
// set, so that (epsilon, delta) of the Poisson sampling gives (epsilon, delta + s·(1 + e^epsilon)). tau is bounded by
// Chernoff, exp(-n·KL((cap+1)/n || q)); nothing is said about the lower end. Under add-or-remove n is units + 1, the
// larger of two neighbours.
std::unique_ptr<Accountant> make_accountant(const std::string& name, Adjacency adjacency);

}  // namespace ghostshard::accountant
