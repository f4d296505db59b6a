// ghostshard._native.accountant: the accountant for Python. Names and types only; the classes that users see are in
// bindings/python/ghostshard/accountants.py.
//
// A history is Opacus' history: a list of (noise_multiplier, sampling_rate, steps). With a truncation (units, cap) each
// step is one of truncated Poisson sampling; with bins each "step" is a whole pass of balls-in-bins sampling in so many
// steps, of which the sampling rate is a unit's chance to be in a given one. std::invalid_argument becomes ValueError.
// Nothing here touches Python objects while it computes, so the interpreter lock is released.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/budget_register.h"
#include "accountant/calibration.h"
#include "accountant/dp_event.h"
#include "accountant/ledger.h"
#include "accountant/rdp_at_orders.h"
#include "accountant/report.h"

namespace py = pybind11;

namespace ghostshard::accountant {
namespace {

using History = std::vector<std::tuple<double, double, int64_t>>;
using Truncation = std::optional<std::pair<int64_t, int64_t>>;  // units, cap
using Bins = std::optional<int64_t>;
// lower, estimate, upper, accountant, direction, detail
using Bound = std::tuple<double, double, double, std::string, std::string, std::string>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Opacus allows a noise multiplier of 0: steps without privacy.
bool is_noiseless(const History& history) {
  bool noiseless = false;
  for (const auto& [sigma, q, steps] : history) {
    (void)SamplingRate{q};
    if (!(steps >= 0)) throw std::invalid_argument("steps must be >= 0, got " + std::to_string(steps));
    if (sigma == 0)
      noiseless = noiseless || steps > 0;
    else
      (void)NoiseMultiplier{sigma};
  }
  return noiseless;
}

Event event(double sigma, double q, const Truncation& truncation = {}, const Bins& bins = {}) {
  if (bins) {
    if (truncation) throw std::invalid_argument("balls-in-bins sampling has no largest batch");
    return BallsInBinsGaussianEvent{*bins, NoiseMultiplier(sigma)};
  }
  if (truncation)
    return TruncatedPoissonGaussianEvent{truncation->first, SamplingRate(q), truncation->second,
                                         NoiseMultiplier(sigma)};
  if (q == 1) return GaussianEvent{NoiseMultiplier(sigma)};
  return PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)};
}

std::unique_ptr<Accountant> charged(const History& history, const std::string& accountant, const std::string& adjacency,
                                    const Truncation& truncation, const Bins& bins) {
  auto engine = make_accountant(accountant, adjacency_from_string(adjacency));
  for (const auto& [sigma, q, steps] : history)
    if (steps > 0) engine->compose(event(sigma, q, truncation, bins), steps);
  return engine;
}

// privacy_report.json and .html into the folder; the summary.
std::string report_of(const std::string& ledger, double delta, const std::string& facts, const std::string& folder,
                      const std::string& accountant) {
  const nlohmann::json report =
      build_report(read_ledger(ledger), Delta(delta), nlohmann::json::parse(facts), accountant);
  write_report(folder, report);
  return summarize_report(report);
}

const char* const kNoiseless = "steps without noise";

std::vector<Bound> epsilons(const History& history, const std::vector<double>& deltas, const std::string& accountant,
                            const std::string& adjacency, const Truncation& truncation, const Bins& bins) {
  const bool noiseless = is_noiseless(history);
  const auto engine = noiseless ? nullptr : charged(history, accountant, adjacency, truncation, bins);
  std::vector<Bound> bounds;
  for (const double at : deltas) {
    const Delta delta(at);
    if (noiseless) {
      bounds.emplace_back(0.0, kInfinity, kInfinity, accountant, "both", kNoiseless);
      continue;
    }
    const EpsilonBound bound = engine->epsilon(delta);
    bounds.emplace_back(bound.lower, bound.estimate, bound.upper, bound.accountant, bound.direction, bound.detail);
  }
  return bounds;
}

std::vector<Bound> deltas(const History& history, const std::vector<double>& epsilons, const std::string& accountant,
                          const std::string& adjacency, const Truncation& truncation, const Bins& bins) {
  const bool noiseless = is_noiseless(history);
  const auto engine = noiseless ? nullptr : charged(history, accountant, adjacency, truncation, bins);
  std::vector<Bound> bounds;
  for (const double at : epsilons) {
    const Epsilon epsilon(at);
    if (noiseless) {
      bounds.emplace_back(0.0, 1.0, 1.0, accountant, "both", kNoiseless);
      continue;
    }
    const DeltaBound bound = engine->delta(epsilon);
    bounds.emplace_back(bound.lower, bound.estimate, bound.upper, bound.accountant, bound.direction, bound.detail);
  }
  return bounds;
}

// events: a JSON list of [event, count] with our events, or a DpEvent of dp_accounting.
std::vector<Bound> epsilons_of_events(const std::string& events, const std::vector<double>& deltas,
                                      const std::string& accountant, const std::string& adjacency) {
  const nlohmann::json json = nlohmann::json::parse(events);
  const auto engine = make_accountant(accountant, adjacency_from_string(adjacency));
  if (json.is_array())
    for (const nlohmann::json& charged : json)
      engine->compose(event_from_json(charged.at(0)), charged.at(1).get<int64_t>());
  else
    for (const auto& [event, count] : events_from_dp_accounting(json)) engine->compose(event, count);
  std::vector<Bound> bounds;
  for (const double at : deltas) {
    const EpsilonBound bound = engine->epsilon(Delta(at));
    bounds.emplace_back(bound.lower, bound.estimate, bound.upper, bound.accountant, bound.direction, bound.detail);
  }
  return bounds;
}

double at_orders(const History& history, const std::vector<double>& orders, double delta) {
  if (is_noiseless(history)) return kInfinity;
  std::vector<std::pair<Event, int64_t>> composed;
  for (const auto& [sigma, q, steps] : history)
    if (steps > 0) composed.emplace_back(event(sigma, q), steps);
  return rdp_epsilon_at_orders(composed, orders, Delta(delta));
}

Budget budget(double epsilon, double delta, const std::string& accountant, const std::string& adjacency) {
  return {accountant, adjacency_from_string(adjacency), Epsilon(epsilon), Delta(delta)};
}

Charge charge(double sigma, double q, int64_t count, const Bins& bins) { return {event(sigma, q, {}, bins), count}; }

void begin_session(BudgetRegister& budgets, const std::string& data, const std::string& run, const std::string& session,
                   const std::string& unit, const std::optional<std::tuple<double, double, int64_t>>& plan,
                   std::optional<int64_t> charged, const Bins& bins) {
  BudgetSession begun{.data = data, .run = run, .session = session, .unit = unit, .plan = {}};
  if (plan) begun.plan = charge(std::get<0>(*plan), std::get<1>(*plan), std::get<2>(*plan), bins);
  budgets.begin(begun, charged);
}

void end_session(BudgetRegister& budgets, const std::string& session, const History& made, const Bins& bins) {
  std::vector<Charge> charges;
  for (const auto& [sigma, q, steps] : made) charges.push_back(charge(sigma, q, steps, bins));
  budgets.end(session, charges);
}

void define_register(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  module.def("budget_block", &budget_block, py::arg("planned"));
  py::class_<BudgetRegister>(module, "BudgetRegister")
      .def(py::init([](const std::string& path) { return BudgetRegister::open(path, Adjacency::kZeroOut); }),
           py::arg("path"), release())
      .def("fingerprint", &BudgetRegister::fingerprint, py::arg("digest"))
      .def(
          "agree_on_limit",
          [](BudgetRegister& budgets, const std::string& data, std::optional<double> epsilon, double delta) {
            const auto limit = epsilon ? std::optional(Epsilon(*epsilon)) : std::nullopt;
            (void)budgets.agree_on_limit(data, limit, Delta(delta));
          },
          py::arg("data"), py::arg("epsilon"), py::arg("delta"), release())
      .def(
          "check",
          [](BudgetRegister& budgets, const std::string& data, double sigma, double q, int64_t count,
             const Bins& bins) { budgets.check(data, "", charge(sigma, q, count, bins)); },
          py::arg("data"), py::arg("noise_multiplier"), py::arg("sampling_rate"), py::arg("count"),
          py::arg("bins") = py::none(), release())
      .def("begin", &begin_session, py::arg("data"), py::arg("run"), py::arg("session"), py::arg("unit"),
           py::arg("plan"), py::arg("charged"), py::arg("bins") = py::none(), release())
      .def(
          "charge",
          [](BudgetRegister& budgets, const std::string& session, double sigma, double q, int64_t count,
             const Bins& bins) { budgets.charge(session, charge(sigma, q, count, bins)); },
          py::arg("session"), py::arg("noise_multiplier"), py::arg("sampling_rate"), py::arg("count"),
          py::arg("bins") = py::none(), release())
      .def("end", &end_session, py::arg("session"), py::arg("made"), py::arg("bins") = py::none(), release())
      .def(
          "facts", [](BudgetRegister& budgets, const std::string& data) { return budgets.facts(data).dump(); },
          py::arg("data"), release());
}

}  // namespace
}  // namespace ghostshard::accountant

PYBIND11_MODULE(accountant, module) {
  using namespace ghostshard::accountant;
  using release = py::call_guard<py::gil_scoped_release>;
  module.doc() = "The C++ accountant; ghostshard.accountants is what to use.";
  module.attr("version") = kLibraryVersion;
  module.def("opacus_orders", &opacus_orders);
  module.attr("most_bins") = kMostBins;
  module.attr("bins_noise") = std::pair(kLeastBinsNoise, kMostBinsNoise);
  define_register(module);
  module.def("epsilons", &epsilons, py::arg("history"), py::arg("deltas"), py::kw_only(), py::arg("accountant"),
             py::arg("adjacency"), py::arg("truncation") = py::none(), py::arg("bins") = py::none(), release());
  module.def("deltas", &deltas, py::arg("history"), py::arg("epsilons"), py::kw_only(), py::arg("accountant"),
             py::arg("adjacency"), py::arg("truncation") = py::none(), py::arg("bins") = py::none(), release());
  module.def("epsilons_of_events", &epsilons_of_events, py::arg("events"), py::arg("deltas"), py::kw_only(),
             py::arg("accountant"), py::arg("adjacency"), release());
  module.def("rdp_epsilon_at_orders", &at_orders, py::arg("history"), py::arg("orders"), py::arg("delta"), release());
  module.def("write_report", &report_of, py::arg("ledger"), py::arg("delta"), py::arg("facts"), py::arg("folder"),
             py::arg("accountant"), release());
  module.def(
      "noise_multiplier",
      [](double epsilon, double delta, double q, int64_t steps, const std::string& accountant,
         const std::string& adjacency, const Truncation& truncation, const Bins& bins) {
        const Budget kept = budget(epsilon, delta, accountant, adjacency);
        if (bins) return calibrate_bins_noise(kept, *bins, steps).value();
        if (!truncation) return calibrate_noise(kept, SamplingRate(q), steps).value();
        const auto step = [&](NoiseMultiplier sigma) { return event(sigma.value(), q, truncation); };
        return calibrate_noise(kept, step, steps).value();
      },
      py::arg("epsilon"), py::arg("delta"), py::arg("sampling_rate"), py::arg("steps"), py::kw_only(),
      py::arg("accountant"), py::arg("adjacency"), py::arg("truncation") = py::none(), py::arg("bins") = py::none(),
      release());
}
