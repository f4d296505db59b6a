// What ran, as the command line says it, and how it is to be accounted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "accountant/accountant.h"
#include "accountant/ledger.h"

namespace ghostshard::accountant::cli {

struct AccountingOptions {
  std::string accountant = "contour";
  std::string adjacency;  // empty: zero-out, or the ledger's
  bool json = false;
  void add_to(CLI::App& command);
};

// What the engine is charged with, in order.
struct Run {
  std::vector<std::pair<Event, int64_t>> phases;
  Adjacency adjacency = Adjacency::kZeroOut;
  std::optional<double> delta;  // that the ledger's header states
  std::optional<LedgerContents> ledger;

  std::unique_ptr<Accountant> account(const std::string& accountant) const;
  nlohmann::json to_json() const;  // [{"event": …, "count": …}]
  std::string describe() const;    // "14063 x poisson_gaussian, q = 0.00427, sigma = 1.1"
};

// --sampling-rate/--noise-multiplier/--steps, or --phase repeated, or --ledger: exactly one of the three ways.
class RunOptions {
 public:
  void add_to(CLI::App& command);
  // Throws std::invalid_argument where none or several ways were used, or a number breaks its rule. A ledger whose
  // last line is cut short is read as far as it is certain, and `notes` says so.
  Run read(const AccountingOptions& accounting, std::vector<std::string>& notes) const;

 private:
  std::string rate_, sigma_, steps_, ledger_;
  std::vector<std::string> phases_, fixed_phases_;
};

// read_ledger, with a file that is not there as the caller's mistake.
LedgerContents open_ledger(const std::string& path);

Adjacency adjacency_of(const AccountingOptions& accounting);

}  // namespace ghostshard::accountant::cli
