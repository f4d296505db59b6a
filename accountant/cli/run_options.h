// The options that say what ran and how it is to be accounted.
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

// The charges for the engine, in order.
struct Run {
  std::vector<std::pair<Event, int64_t>> phases;
  Adjacency adjacency = Adjacency::kZeroOut;
  std::optional<double> delta;  // from the ledger's header, if it states one
  std::optional<LedgerContents> ledger;

  std::unique_ptr<Accountant> account(const std::string& accountant) const;
  nlohmann::json to_json() const;  // [{"event": …, "count": …}]
  std::string describe() const;    // "14063 x poisson_gaussian, q = 0.00427, sigma = 1.1"
};

// --sampling-rate/--noise-multiplier/--steps, or --phase and its like repeated, or --ledger: at most one of the three
// ways, and what is released besides: --event and --dp-event.
class RunOptions {
 public:
  void add_to(CLI::App& command);
  // Throws std::invalid_argument if none or several ways were used, or a number breaks its rule. If the last line of a
  // ledger is cut short, the whole lines before it are read, and a note is added to `notes`.
  Run read(const AccountingOptions& accounting, std::vector<std::string>& notes) const;

 private:
  std::string rate_, sigma_, steps_, ledger_;
  std::vector<std::string> phases_, fixed_phases_, truncated_phases_, bins_phases_, events_, dp_events_;
};

// read_ledger, except that a missing file is the caller's mistake (std::invalid_argument).
LedgerContents open_ledger(const std::string& path);

// The note on a ledger whose last line is cut short.
std::string cut_short_note(const std::string& path, const LedgerContents& ledger);

// To standard error, a line each.
void say(const std::vector<std::string>& notes);

// The delta in the ledger's header, if it states one.
std::optional<double> stated_delta(const LedgerContents& ledger);

Adjacency adjacency_of(const AccountingOptions& accounting);

// Help texts of options that several subcommands have.
inline constexpr const char* kRateHelp = "probability of each unit to be in a batch; may be a fraction: 256/60000";
inline constexpr const char* kNoiseHelp = "standard deviation of the noise in units of the clip norm";

}  // namespace ghostshard::accountant::cli
