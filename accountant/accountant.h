// An accountant composes events and bounds epsilon at a delta, or delta at an epsilon.
//
// Every event is bounded in both directions (a unit removed, a unit added), and the larger bound is returned. Removing
// is not always the worse direction: for compositions that is no theorem (Lebeda et al., arXiv:2405.20769).
//
// Every number called upper is proven. Effort only limits the time that goes into making it tight.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accountant/events.h"
#include "accountant/types.h"

namespace ghostshard::accountant {

// lower <= true epsilon <= upper, and lower <= estimate <= upper. Report `upper`; `estimate` is the most likely value.
// upper is +infinity if no finite bound is found.
struct EpsilonBound {
  double lower = 0;
  double estimate = 0;
  double upper = 0;
  std::string accountant;  // "contour", "prv", "rdp"
  std::string direction;   // the neighbour that decided: "remove", "add", or "both" if they give the same
  std::string detail;      // the way there: e.g. the order at which the minimum was found, mesh and node counts
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

// kQuick: milliseconds, in rare cases some tens of them. For a number shown after every step, or a point of a chart.
// kTight: the bracket is as narrow as the engine can make it. Up to seconds in rare cases.
// kUpper: the upper end is about as low as kTight's, and sooner found; the lower end may be 0. For calibration.
enum class Effort { kQuick, kTight, kUpper };

// `count` executions of one event. An accountant holds one of these per distinct event.
struct Charge {
  Event event;
  int64_t count;
};

class Accountant {
 public:
  virtual ~Accountant() = default;

  // Charges `count` further executions of the event. All events and engines are multiplied by their counts here and
  // nowhere else. Throws std::invalid_argument for a negative count, a total of 2^63 or more, and an event that this
  // engine cannot bound under this adjacency; earlier charges then stay as they were.
  void compose(const Event& event, int64_t count);

  EpsilonBound epsilon(Delta delta, Effort effort = Effort::kTight) const;
  DeltaBound delta(Epsilon epsilon, Effort effort = Effort::kTight) const;

  virtual std::unique_ptr<Accountant> clone() const = 0;
  virtual std::string name() const = 0;

  Adjacency adjacency() const { return adjacency_; }
  // The events that the engine bounds. Where truncated Poisson sampling is reduced to Poisson sampling, that stands
  // here.
  const std::vector<Charge>& charges() const { return charges_; }

 protected:
  explicit Accountant(Adjacency adjacency);
  Accountant(const Accountant&) = default;
  Accountant& operator=(const Accountant&) = default;

 private:
  // Called once for each distinct event before it is charged. Throws std::invalid_argument if the engine cannot bound
  // the event.
  virtual void admit(const Event& event) = 0;
  // Called only if something was charged. The caller fills in the name.
  virtual EpsilonBound bound_epsilon(Delta delta, Effort effort) const = 0;
  virtual DeltaBound bound_delta(Epsilon epsilon, Effort effort) const = 0;
  // Whether the engine bounds truncated Poisson sampling as what it is. For another one it is Poisson sampling that
  // something else replaces with a small probability.
  virtual bool bounds_truncation() const { return false; }

  EpsilonBound epsilon_beside_switching(Delta delta, Effort effort) const;

  Adjacency adjacency_;
  std::vector<Charge> charges_;
  std::map<EventKey, size_t> index_;  // of the charge with this event
  int64_t total_ = 0;
  double switched_ = 0;  // s of truncated sampling (make_accountant)
};

// name: "contour" (the default everywhere), "prv" or "rdp". Throws std::invalid_argument for another name, listing the
// known ones, and for an adjacency that does not exist. The engines can bound:
//
//   event                          zero-out, add-or-remove    replace-one
//   gaussian                       contour prv rdp            contour prv rdp (sensitivity 2: sigma is halved)
//   poisson_gaussian               contour prv rdp            contour prv rdp
//   poisson_adaptive_clipping      contour prv rdp            contour prv rdp
//   fixed_size_gaussian            refused                    contour prv rdp
//   truncated_poisson_gaussian     contour prv rdp            refused
//   tree_aggregation               contour prv rdp            contour prv rdp
//   balls_in_bins_gaussian         contour prv rdp            refused (of one step: as gaussian)
//   group_poisson_gaussian         contour prv rdp            refused
//   mixture_of_gaussians           contour prv rdp            refused
//   laplace, discrete_laplace,
//   discrete_gaussian              contour prv rdp            contour prv rdp, refused if sampled
//   exponential_mechanism, zcdp,
//   epsilon_delta, loss_table      contour prv rdp            contour prv rdp
//   tuning_negative_binomial,
//   tuning_poisson                 as the run that is tuned, if it has no infinite losses
//
// All below tree_aggregation, and what is sampled under replace-one, are tables of losses (losses/dominating_pair.h),
// which contour and prv compose on the grid, rdp by their moments.
//
// Truncated Poisson sampling is bounded tightly by contour and rdp (gaussian/truncated_poisson.h), under zero-out less
// so. For prv it is Poisson sampling that something else replaces with probability tau, the probability of drawing more
// than the cap. Over T steps the outcomes then differ by at most s = T·tau in total variation, on either data set. So
// (epsilon, delta) of the Poisson sampling gives (epsilon, delta + s·(1 + e^epsilon)). Chernoff bounds tau by
// exp(-n·KL((cap+1)/n || q)). The lower end is 0 for each. Under add-or-remove n is units + 1, the larger of two
// neighbours.
std::unique_ptr<Accountant> make_accountant(const std::string& name, Adjacency adjacency);

}  // namespace ghostshard::accountant
