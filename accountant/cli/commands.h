// The subcommands of ghostshard-account. Each function adds a subcommand with its options to the program, and sets
// `action` if the subcommand is chosen. Results go to std::cout, notes to std::cerr. Errors are exceptions: the
// caller's mistakes std::invalid_argument, the system's refusals std::runtime_error.
#pragma once

#include <functional>
#include <memory>

#include <CLI/CLI.hpp>

namespace ghostshard::accountant::cli {

// Set by the chosen subcommand. It runs the subcommand and returns the exit status.
using Action = std::function<int()>;

// Lets the subcommand, if it is chosen, set `action` to run(*options).
template <class Options>
void on_chosen(CLI::App& command, Action& action, const std::shared_ptr<const Options>& options,
               int (*run)(const Options& options)) {
  command.callback([&action, options, run] { action = [options, run] { return run(*options); }; });
}

// commands_bound.cpp: the cost of a run
void add_epsilon(CLI::App& program, Action& action);
void add_delta(CLI::App& program, Action& action);
void add_curve(CLI::App& program, Action& action);
// The run in the words of another library.
void add_events(CLI::App& program, Action& action);
// commands_zcdp.cpp: the run in rho
void add_zcdp(CLI::App& program, Action& action);
// commands_tradeoff.cpp: what it means for those who test or guess
void add_tradeoff(CLI::App& program, Action& action);
// commands_calibrate.cpp: the limits that a budget sets
void add_noise(CLI::App& program, Action& action);
void add_steps(CLI::App& program, Action& action);
void add_rate(CLI::App& program, Action& action);
// commands_report.cpp: the report of a ledger
void add_report(CLI::App& program, Action& action);
void add_verify(CLI::App& program, Action& action);
// commands_register.cpp: the register of budgets
void add_register(CLI::App& program, Action& action);

}  // namespace ghostshard::accountant::cli
