// The subcommands of ghostshard-account. Each function adds its options to the program and what is to be done when the
// subcommand was chosen; they print to std::cout and note to std::cerr. Errors are exceptions: the caller's mistakes
// std::invalid_argument, the system's refusals std::runtime_error.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace ghostshard::accountant::cli {

// Set by a chosen subcommand: run it, get the exit status.
using Action = std::function<int()>;

// commands_bound.cpp: what a run has spent
void add_epsilon(CLI::App& program, Action& action);
void add_delta(CLI::App& program, Action& action);
void add_curve(CLI::App& program, Action& action);
// commands_calibrate.cpp: what a budget allows
void add_noise(CLI::App& program, Action& action);
void add_steps(CLI::App& program, Action& action);
void add_rate(CLI::App& program, Action& action);
// commands_report.cpp: what a ledger proves
void add_report(CLI::App& program, Action& action);
void add_verify(CLI::App& program, Action& action);

}  // namespace ghostshard::accountant::cli
