#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/cli/commands.h"
#include "accountant/cli/numbers.h"
#include "accountant/cli/run_options.h"
#include "accountant/dp_event.h"

namespace ghostshard::accountant::cli {
namespace {

using nlohmann::json;

json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

template <typename Bound>
json to_json(const Bound& bound, const Run& run, const std::vector<std::string>& notes) {
  json all = {{"lower", finite_or_null(bound.lower)},  {"estimate", finite_or_null(bound.estimate)},
              {"upper", finite_or_null(bound.upper)},  {"accountant", bound.accountant},
              {"direction", bound.direction},          {"detail", bound.detail},
              {"adjacency", to_string(run.adjacency)}, {"run", run.to_json()}};
  if (run.ledger) all["ledger_head"] = run.ledger->head;
  if (!notes.empty()) all["notes"] = notes;
  return all;
}

template <typename Bound>
void print_how(const Bound& bound, const Run& run) {
  std::cout << "  bracket     at least " << exact(bound.lower) << ", estimate " << exact(bound.estimate) << ", at most "
            << exact(bound.upper) << "\n  accountant  " << bound.accountant << " (" << bound.detail
            << "), worse direction: " << bound.direction << "\n  adjacency   " << to_string(run.adjacency)
            << "\n  run         " << run.describe() << '\n';
}

Delta delta_of(const std::string& text, const Run& run) {
  if (!text.empty()) return Delta(parse_number("--delta", text));
  if (run.delta) return Delta(*run.delta);
  throw std::invalid_argument(
      "--delta must be given, e.g. --delta 1e-6: a probability well below 1 / (number of units)");
}

struct Curve {
  AccountingOptions accounting;
  RunOptions run;
  std::string deltas, epsilons, delta;
  bool over_steps = false, csv = false;
  int64_t points = 20;
};

struct CurvePoint {
  std::string at;  // the column's exact text
  double x, lower, estimate, upper;
};

// Epsilon after at most `points` prefixes of the run, the last of which is the whole.
std::vector<CurvePoint> over_steps(const Run& run, const std::string& accountant, Delta delta, int64_t points) {
  int64_t total = 0;
  for (const auto& [event, count] : run.phases) total += count;
  const auto engine = make_accountant(accountant, run.adjacency);
  std::vector<CurvePoint> curve;
  auto phase = run.phases.begin();
  int64_t charged = 0, of_phase = 0;
  points = std::min(points, total);
  for (int64_t part = 1; part <= points; ++part) {
    // Both factors may be near 2^53: the quotient first.
    const int64_t until = part == points ? total : total / points * part + total % points * part / points;
    while (charged < until) {
      const int64_t now = std::min(until - charged, phase->second - of_phase);
      engine->compose(phase->first, now);
      charged += now;
      of_phase += now;
      if (of_phase == phase->second) {
        ++phase;
        of_phase = 0;
      }
    }
    const EpsilonBound bound = engine->epsilon(delta);
    if (curve.empty() || curve.back().x < static_cast<double>(charged))
      curve.push_back(
          {std::to_string(charged), static_cast<double>(charged), bound.lower, bound.estimate, bound.upper});
  }
  return curve;
}

void print_curve(const Curve& o, const Run& run, const std::vector<CurvePoint>& curve, const std::string& at,
                 const std::string& of, const std::vector<std::string>& notes) {
  if (o.accounting.json) {
    json points = json::array();
    for (const CurvePoint& point : curve)
      points.push_back({{at, at == "steps" ? json(static_cast<int64_t>(point.x)) : json(point.x)},
                        {of,
                         {{"lower", finite_or_null(point.lower)},
                          {"estimate", finite_or_null(point.estimate)},
                          {"upper", finite_or_null(point.upper)}}}});
    json all = {{"points", points},
                {"accountant", o.accounting.accountant},
                {"adjacency", to_string(run.adjacency)},
                {"run", run.to_json()}};
    if (!notes.empty()) all["notes"] = notes;
    std::cout << all.dump(2) << '\n';
    return;
  }
  say(notes);
  const char* gap = o.csv ? "," : "  ";
  const auto cell = [&](const std::string& text, size_t width) {
    std::cout << std::string(o.csv || text.size() >= width ? 0 : width - text.size(), ' ') << text;
  };
  cell(at, 10);
  for (const char* end : {"_lower", "_estimate", "_upper"}) {
    std::cout << gap;
    cell(of + end, 22);
  }
  std::cout << '\n';
  for (const CurvePoint& point : curve) {
    cell(point.at, 10);
    for (const double value : {point.lower, point.estimate, point.upper}) {
      std::cout << gap;
      cell(exact(value), 22);
    }
    std::cout << '\n';
  }
}

int run_curve(const Curve& o) {
  std::vector<std::string> notes;
  const Run run = o.run.read(o.accounting, notes);
  if ((!o.deltas.empty()) + (!o.epsilons.empty()) + o.over_steps > 1)
    throw std::invalid_argument("--deltas, --epsilons and --over-steps are three different curves: ask for one");
  if (!(o.points >= 1 && o.points <= 10000))
    throw std::invalid_argument("--points must lie between 1 and 10000, got " + std::to_string(o.points));
  std::vector<CurvePoint> curve;
  if (o.over_steps) {
    curve = over_steps(run, o.accounting.accountant, delta_of(o.delta, run), o.points);
    print_curve(o, run, curve, "steps", "epsilon", notes);
    return 0;
  }
  const auto engine = run.account(o.accounting.accountant);
  if (!o.epsilons.empty()) {
    for (const double at : parse_numbers("--epsilons", o.epsilons)) {
      const DeltaBound bound = engine->delta(Epsilon(at));
      curve.push_back({exact(at), at, bound.lower, bound.estimate, bound.upper});
    }
    print_curve(o, run, curve, "epsilon", "delta", notes);
    return 0;
  }
  const std::string deltas = o.deltas.empty() ? "1e-2,1e-3,1e-4,1e-5,1e-6,1e-7,1e-8,1e-9,1e-10,1e-12,1e-15" : o.deltas;
  for (const double at : parse_numbers("--deltas", deltas)) {
    const EpsilonBound bound = engine->epsilon(Delta(at));
    curve.push_back({exact(at), at, bound.lower, bound.estimate, bound.upper});
  }
  print_curve(o, run, curve, "delta", "epsilon", notes);
  return 0;
}

// One bound: epsilon at a delta, or delta at an epsilon.
struct Bound {
  AccountingOptions accounting;
  RunOptions run;
  std::string at;
};

// Prints a bound that was found at `at_name` = at.
template <class Found>  // EpsilonBound or DeltaBound
int print_bound(const Bound& o, const Run& run, const std::vector<std::string>& notes, const Found& bound,
                const std::string& headline, const char* at_name, double at) {
  if (o.accounting.json) {
    json all = to_json(bound, run, notes);
    all[at_name] = at;
    std::cout << all.dump(2) << '\n';
    return 0;
  }
  say(notes);
  std::cout << headline << " at " << at_name << " = " << exact(at) << '\n';
  print_how(bound, run);
  return 0;
}

int run_epsilon(const Bound& o) {
  std::vector<std::string> notes;
  const Run run = o.run.read(o.accounting, notes);
  const Delta delta = delta_of(o.at, run);
  const EpsilonBound bound = run.account(o.accounting.accountant)->epsilon(delta);
  return print_bound(o, run, notes, bound, "epsilon <= " + up(bound.upper, 4), "delta", delta.value());
}

int run_delta(const Bound& o) {
  std::vector<std::string> notes;
  const Run run = o.run.read(o.accounting, notes);
  const Epsilon epsilon(parse_number("--epsilon", o.at));
  const DeltaBound bound = run.account(o.accounting.accountant)->delta(epsilon);
  return print_bound(o, run, notes, bound, "delta <= " + exact(bound.upper), "epsilon", epsilon.value());
}

struct Events {
  AccountingOptions accounting;
  RunOptions run;
};

int run_events(const Events& o) {
  std::vector<std::string> notes;
  const Run run = o.run.read(o.accounting, notes);
  say(notes);
  std::cout << to_dp_accounting(run.phases).dump(2) << '\n';
  return 0;
}

}  // namespace

void add_epsilon(CLI::App& program, Action& action) {
  auto o = std::make_shared<Bound>();
  CLI::App* command = program.add_subcommand("epsilon", "The privacy loss of a run at a delta: a certified bracket.");
  command->footer(
      "Report the upper end. Example:\n"
      "  ghostshard account epsilon --sampling-rate 256/60000 --noise-multiplier 1.1 --steps 14063 --delta 1e-5");
  o->run.add_to(*command);
  command->add_option("-d,--delta", o->at, "what is added to every probability; the ledger's own if not given")
      ->group("At");
  o->accounting.add_to(*command);
  on_chosen<Bound>(*command, action, o, run_epsilon);
}

void add_delta(CLI::App& program, Action& action) {
  auto o = std::make_shared<Bound>();
  CLI::App* command = program.add_subcommand("delta", "The delta of a run at an epsilon: a certified bracket.");
  command->footer(
      "Example:\n  ghostshard account delta --sampling-rate 0.01 --noise-multiplier 1 --steps 10000 --epsilon 6");
  o->run.add_to(*command);
  command->add_option("-e,--epsilon", o->at, "the privacy loss")->required()->group("At");
  o->accounting.add_to(*command);
  on_chosen<Bound>(*command, action, o, run_delta);
}

void add_events(CLI::App& program, Action& action) {
  auto o = std::make_shared<Events>();
  CLI::App* command = program.add_subcommand("events", "The run as a DpEvent of dp_accounting, in JSON.");
  command->footer("Example:\n  ghostshard account events --ledger ledger.jsonl > event.json");
  o->run.add_to(*command);
  on_chosen<Events>(*command, action, o, run_events);
}

void add_curve(CLI::App& program, Action& action) {
  auto o = std::make_shared<Curve>();
  CLI::App* command =
      program.add_subcommand("curve", "Epsilon at many deltas, delta at many epsilons, or epsilon over the steps.");
  command->footer(
      "Examples:\n"
      "  ghostshard account curve --phase 0.01:1:10000 --deltas 1e-5,1e-6,1e-7\n"
      "  ghostshard account curve --phase 0.01:1:10000 --over-steps --delta 1e-5 --points 10 --csv");
  o->run.add_to(*command);
  command->add_option("--deltas", o->deltas, "comma-separated; 1e-2 to 1e-15 if not given")->group("At");
  command->add_option("--epsilons", o->epsilons, "comma-separated: delta at each")->group("At");
  CLI::Option* over_steps =
      command->add_flag("--over-steps", o->over_steps, "epsilon after a growing part of the steps, at --delta")
          ->group("At");
  command->add_option("-d,--delta", o->delta, "for --over-steps")->needs(over_steps)->group("At");
  command->add_option("--points", o->points, "number of points, for --over-steps")
      ->needs(over_steps)
      ->capture_default_str()
      ->group("At");
  o->accounting.add_to(*command);
  command->add_flag("--csv", o->csv, "comma-separated values in place of a table")
      ->excludes(command->get_option("--json"))
      ->group("How");
  on_chosen<Curve>(*command, action, o, run_curve);
}

}  // namespace ghostshard::accountant::cli
