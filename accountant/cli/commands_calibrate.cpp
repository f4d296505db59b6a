#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "accountant/calibration.h"
#include "accountant/cli/commands.h"
#include "accountant/cli/numbers.h"
#include "accountant/cli/run_options.h"

namespace ghostshard::accountant::cli {
namespace {

using nlohmann::json;

constexpr const char* kEnds = ", where the search ends: ";
constexpr const char* kLessWouldDo = "less noise would do as well";

// A target, and two of sampling rate, noise multiplier and steps.
struct Target {
  AccountingOptions accounting;
  std::string epsilon, delta, rate, sigma, steps, bins, passes;

  void add_target(CLI::App& command) {
    command.add_option("-e,--epsilon", epsilon, "the budget's epsilon")->required()->group("Budget");
    command.add_option("-d,--delta", delta, "the budget's delta")->required()->group("Budget");
  }
  CLI::Option* add_rate(CLI::App& command) {
    return command.add_option("-q,--sampling-rate", rate, kRateHelp)->required()->group("What runs");
  }
  void add_sigma(CLI::App& command) {
    command.add_option("-s,--noise-multiplier", sigma, kNoiseHelp)->required()->group("What runs");
  }
  CLI::Option* add_steps(CLI::App& command) {
    return command.add_option("-t,--steps", steps, "number of steps")->required()->group("What runs");
  }

  Budget budget() const {
    return {accounting.accountant, adjacency_of(accounting), Epsilon(parse_number("--epsilon", epsilon)),
            Delta(parse_number("--delta", delta))};
  }
  SamplingRate sampling_rate() const { return SamplingRate(parse_number("--sampling-rate", rate)); }
  NoiseMultiplier noise_multiplier() const { return NoiseMultiplier(parse_number("--noise-multiplier", sigma)); }
  int64_t step_count() const { return parse_count("--steps", steps); }
};

// What the answer leads to: computed again, so that nobody has to believe the search. No event: no steps.
EpsilonBound reached_by(const Budget& budget, const std::optional<Event>& event, int64_t count) {
  const auto engine = make_accountant(budget.accountant, budget.adjacency);
  if (event) engine->compose(*event, count);
  return engine->epsilon(budget.delta);
}

json answer(const Budget& budget, const EpsilonBound& reached, NoiseMultiplier sigma, const char* unknown) {
  return {{"noise_multiplier", sigma.value()},        {"epsilon", reached.upper},
          {"target_epsilon", budget.epsilon.value()}, {"delta", budget.delta.value()},
          {"accountant", budget.accountant},          {"direction", reached.direction},
          {"adjacency", to_string(budget.adjacency)}, {"answer", unknown}};
}

// limit: where the search ended, if it found nothing to stop it before; else empty.
int print(const Target& target, const char* unknown, const std::string& headline, SamplingRate q, NoiseMultiplier sigma,
          int64_t steps, const std::string& limit) {
  const Budget budget = target.budget();
  const EpsilonBound reached =
      reached_by(budget, steps > 0 ? std::optional<Event>(PoissonGaussianEvent{q, sigma}) : std::nullopt, steps);
  json all = answer(budget, reached, sigma, unknown);
  all["sampling_rate"] = q.value();
  all["steps"] = steps;
  if (!limit.empty()) all["search_ended_at"] = limit;
  if (target.accounting.json) {
    std::cout << all.dump(2) << '\n';
    return 0;
  }
  std::cout << headline << (limit.empty() ? "" : kEnds + limit) << "\n  leads to    epsilon <= " << exact(reached.upper)
            << " (target " << exact(budget.epsilon.value()) << ") at delta = " << exact(budget.delta.value())
            << "\n  run         " << steps << " steps, sampling rate " << exact(q.value()) << ", noise multiplier "
            << exact(sigma.value()) << "\n  accountant  " << budget.accountant << ", adjacency "
            << to_string(budget.adjacency) << '\n';
  return 0;
}

// Passes with balls-in-bins sampling.
int run_bins_noise(const Target& o) {
  if (o.bins.empty() || o.passes.empty() || !o.rate.empty() || !o.steps.empty())
    throw std::invalid_argument(
        "what runs must be --sampling-rate and --steps, or --bins and --passes, and nothing of the other pair");
  const Budget budget = o.budget();
  const int64_t bins = parse_count("--bins", o.bins);
  const int64_t passes = parse_count("--passes", o.passes);
  const NoiseMultiplier sigma = calibrate_bins_noise(budget, bins, passes);
  const EpsilonBound reached = reached_by(budget, BallsInBinsGaussianEvent{bins, sigma}, passes);
  const std::string limit = sigma.value() <= kLeastBinsNoise ? kLessWouldDo : "";
  if (o.accounting.json) {
    json all = answer(budget, reached, sigma, "noise_multiplier");
    if (!limit.empty()) all["search_ended_at"] = limit;
    all["bins"] = bins;
    all["passes"] = passes;
    std::cout << all.dump(2) << '\n';
    return 0;
  }
  std::cout << "noise multiplier " << up(sigma.value(), 7) << (limit.empty() ? "" : kEnds + limit)
            << "\n  leads to    epsilon <= " << exact(reached.upper) << " (target " << exact(budget.epsilon.value())
            << ") at delta = " << exact(budget.delta.value()) << "\n  run         " << passes
            << " passes, each unit in one of " << bins << " steps of each"
            << ", noise multiplier " << exact(sigma.value()) << "\n  accountant  " << budget.accountant
            << ", adjacency " << to_string(budget.adjacency) << '\n';
  return 0;
}

int run_noise(const Target& o) {
  if (o.rate.empty() || o.steps.empty() || !o.bins.empty() || !o.passes.empty()) return run_bins_noise(o);
  const NoiseMultiplier sigma = calibrate_noise(o.budget(), o.sampling_rate(), o.step_count());
  return print(o, "noise_multiplier", "noise multiplier " + up(sigma.value(), 7), o.sampling_rate(), sigma,
               o.step_count(), sigma.value() <= kSmallestSigma ? kLessWouldDo : "");
}

int run_steps(const Target& o) {
  const int64_t steps = calibrate_steps(o.budget(), o.sampling_rate(), o.noise_multiplier());
  return print(o, "steps", "steps " + std::to_string(steps), o.sampling_rate(), o.noise_multiplier(), steps,
               steps >= kMostSteps ? "the budget allows 2^40 steps or more" : "");
}

int run_rate(const Target& o) {
  const SamplingRate q = calibrate_sampling_rate(o.budget(), o.noise_multiplier(), o.step_count());
  return print(o, "sampling_rate", "sampling rate " + down(q.value(), q.value() > 1e-3 ? 9 : 15), q,
               o.noise_multiplier(), o.step_count(), q.value() >= 1 ? "no sampling is needed" : "");
}

}  // namespace

void add_noise(CLI::App& program, Action& action) {
  auto o = std::make_shared<Target>();
  CLI::App* command = program.add_subcommand("noise", "The least noise multiplier that keeps a run within a budget.");
  command->footer(
      "The answer is on the private side: with it, and with it rounded up, epsilon stays within the budget. Example:\n"
      "  ghostshard account noise --epsilon 3 --delta 8e-6 --sampling-rate 1024/42061 --steps 411");
  o->add_target(*command);
  o->add_rate(*command)->required(false);
  o->add_steps(*command)->required(false);
  command->add_option("--bins", o->bins, "instead of rate and steps, balls-in-bins sampling: steps of each pass")
      ->group("What runs");
  command->add_option("--passes", o->passes, "passes over the data")->group("What runs");
  o->accounting.add_to(*command);
  on_chosen<Target>(*command, action, o, run_noise);
}

void add_steps(CLI::App& program, Action& action) {
  auto o = std::make_shared<Target>();
  CLI::App* command = program.add_subcommand("steps", "The most steps that a budget allows.");
  command->footer(
      "0 means that not even one step is allowed. Example:\n"
      "  ghostshard account steps --epsilon 3 --delta 8e-6 --sampling-rate 1024/42061 --noise-multiplier 1.1");
  o->add_target(*command);
  o->add_rate(*command);
  o->add_sigma(*command);
  o->accounting.add_to(*command);
  on_chosen<Target>(*command, action, o, run_steps);
}

void add_rate(CLI::App& program, Action& action) {
  auto o = std::make_shared<Target>();
  CLI::App* command = program.add_subcommand("rate", "The largest sampling rate that a budget allows.");
  command->footer(
      "Times the number of units it is the largest expected batch. Example:\n"
      "  ghostshard account rate --epsilon 3 --delta 8e-6 --noise-multiplier 1.1 --steps 411");
  o->add_target(*command);
  o->add_sigma(*command);
  o->add_steps(*command);
  o->accounting.add_to(*command);
  on_chosen<Target>(*command, action, o, run_rate);
}

}  // namespace ghostshard::accountant::cli
