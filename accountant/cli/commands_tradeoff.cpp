#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/cli/commands.h"
#include "accountant/cli/numbers.h"
#include "accountant/cli/run_options.h"
#include "accountant/tradeoff.h"

namespace ghostshard::accountant::cli {
namespace {

using nlohmann::json;

struct TradeoffOptions {
  AccountingOptions accounting;
  RunOptions run;
  std::string rates, priors;
};

std::vector<TestPower> powers(const Accountant& engine, const std::vector<double>& at) {
  std::vector<TestPower> found;
  found.reserve(at.size());
  for (const double rate : at) found.push_back(most_powerful_test(engine, rate));
  return found;
}

json to_json(const std::vector<double>& at, const std::vector<TestPower>& found, const char* given, const char* bound) {
  json list = json::array();
  for (size_t i = 0; i < at.size(); ++i)
    list.push_back(
        {{given, at[i]}, {bound, found[i].at_most}, {"epsilon", found[i].epsilon}, {"delta", found[i].delta}});
  return list;
}

int run_tradeoff(const TradeoffOptions& o) {
  std::vector<std::string> notes;
  const Run run = o.run.read(o.accounting, notes);
  say(notes);
  const bool neither = o.rates.empty() && o.priors.empty();
  const auto rates = parse_numbers("--false-positive-rates", neither ? "0.1,0.01,0.001,0.0001" : o.rates);
  const auto priors = parse_numbers("--priors", o.priors);
  const auto engine = run.account(o.accounting.accountant);
  const auto of_rates = powers(*engine, rates);
  const auto of_priors = powers(*engine, priors);
  if (o.accounting.json) {
    std::cout << json{{"tests", to_json(rates, of_rates, "false_positive_rate", "true_positive_rate_at_most")},
                      {"reconstruction", to_json(priors, of_priors, "prior", "right_guess_at_most")},
                      {"accountant", engine->name()},
                      {"adjacency", to_string(run.adjacency)},
                      {"run", run.to_json()}}
                     .dump(2)
              << '\n';
    return 0;
  }
  for (size_t i = 0; i < rates.size(); ++i)
    std::cout << "a test with false positive rate " << exact(rates[i])
              << " finds a unit with probability <= " << up(of_rates[i].at_most, 6) << '\n';
  for (size_t i = 0; i < priors.size(); ++i)
    std::cout << "a guess that is right with probability " << exact(priors[i])
              << " beforehand is right with <= " << up(of_priors[i].at_most, 6) << " afterwards\n";
  std::cout << "  accountant  " << engine->name() << "\n  adjacency   " << to_string(run.adjacency)
            << "\n  run         " << run.describe() << '\n';
  return 0;
}

}  // namespace

void add_tradeoff(CLI::App& program, Action& action) {
  auto o = std::make_shared<TradeoffOptions>();
  CLI::App* command =
      program.add_subcommand("tradeoff", "How well anybody can test for a unit, or guess its content: upper bounds.");
  command->footer(
      "Both are certified, at the epsilon that bounds best. Example:\n"
      "  ghostshard account tradeoff --phase 0.01:1:10000 --false-positive-rates 0.01,0.001 --priors 1e-4");
  o->run.add_to(*command);
  command
      ->add_option("--false-positive-rates", o->rates,
                   "comma-separated: how often the test names a unit that was not there")
      ->group("At");
  command
      ->add_option("--priors", o->priors,
                   "comma-separated: how likely the content is guessed without seeing any output")
      ->group("At");
  o->accounting.add_to(*command);
  on_chosen<TradeoffOptions>(*command, action, o, run_tradeoff);
}

}  // namespace ghostshard::accountant::cli
