#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "accountant/cli/commands.h"
#include "accountant/cli/numbers.h"
#include "accountant/cli/run_options.h"
#include "accountant/zcdp.h"

namespace ghostshard::accountant::cli {
namespace {

struct Concentrated {
  AccountingOptions accounting;
  RunOptions run;
  std::string omega;
};

int run_zcdp(const Concentrated& o) {
  std::vector<std::string> notes;
  const Run run = o.run.read(o.accounting, notes);
  std::optional<double> omega;
  if (!o.omega.empty()) omega = parse_number("--omega", o.omega);
  const ConcentratedBound bound = concentrated_bound(run.phases, run.adjacency, omega);
  const bool truncated = std::isfinite(bound.omega);
  if (o.accounting.json) {
    nlohmann::json all = {{"rho", bound.rho},
                          {"xi", bound.xi},
                          {"omega", truncated ? nlohmann::json(bound.omega) : nlohmann::json(nullptr)},
                          {"kind", truncated ? "truncated CDP" : "zCDP"},
                          {"detail", bound.detail},
                          {"adjacency", to_string(run.adjacency)},
                          {"run", run.to_json()}};
    if (run.ledger) all["ledger_head"] = run.ledger->head;
    if (!notes.empty()) all["notes"] = notes;
    std::cout << all.dump(2) << '\n';
    return 0;
  }
  say(notes);
  std::cout << "rho <= " << up(bound.rho, 6);
  if (bound.xi > 0) std::cout << ", xi <= " << up(bound.xi, 6);
  if (truncated)
    std::cout << " for orders below omega = " << exact(bound.omega) << " alone (truncated CDP)";
  else
    std::cout << " (zCDP)";
  std::cout << "\n  exactly     rho = " << exact(bound.rho) << ", xi = " << exact(bound.xi) << "\n  found by    "
            << bound.detail << "\n  adjacency   " << to_string(run.adjacency) << "\n  run         " << run.describe()
            << '\n';
  return 0;
}

}  // namespace

void add_zcdp(CLI::App& program, Action& action) {
  auto o = std::make_shared<Concentrated>();
  CLI::App* command = program.add_subcommand("zcdp", "The run in zero-concentrated differential privacy: its rho.");
  command->footer(
      "Sampling is counted only below an order omega: then it is truncated CDP. Examples:\n"
      "  ghostshard account zcdp --phase 1:20:100\n"
      "  ghostshard account zcdp --phase 0.01:1:1000 --omega 8");
  o->run.add_to(*command);
  command->add_option("--omega", o->omega, "orders of Rényi divergence below which rho must hold; all if not given")
      ->group("At");
  o->accounting.add_to(*command);
  command->remove_option(command->get_option("--accountant"));  // rho is computed without one
  on_chosen<Concentrated>(*command, action, o, run_zcdp);
}

}  // namespace ghostshard::accountant::cli
