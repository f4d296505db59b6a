// The parts that build_report puts together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/accountant.h"
#include "accountant/ledger.h"
#include "accountant/rounds.h"

namespace ghostshard::accountant::report_parts {

inline constexpr const char* kNotStated = "not stated by the run";

// Whether a name is one of the sixteen sections, which facts may add to.
bool is_section(const std::string& name);
// JSON knows no infinity: null if there is no bound.
nlohmann::json finite_or_null(double value);
nlohmann::json to_json(const EpsilonBound& bound);

// ---- sections from the ledger (from_ledger.cpp)

// Successive releases of one event. If units are dealt to groups (accountant/rounds.h), only those of `charged` runs
// made the group with the most rounds have one more.
struct Run {
  size_t event = 0;  // index into Spent::events
  int64_t releases = 0;
  bool charged = true;
};

struct Spent {
  std::vector<std::pair<Event, int64_t>> events;   // distinct, in order of first appearance, with all their releases
  std::vector<std::pair<Event, int64_t>> charged;  // the same, with those that one unit is charged for at most
  std::vector<Run> sequence;                       // in order
  Rounds rounds;
  std::set<int64_t> steps;  // of a pass of balls-in-bins sampling all of them
  std::map<int64_t, int64_t> releases_per_attempt;
  // That the events assume: "poisson", "cyclic-poisson", "cyclic", "fixed-size", "truncated-poisson",
  // "balls-in-bins".
  std::set<std::string> samplers;
  std::string groups_void;      // why nothing can be said of a run with groups or buffers; empty: it can
  bool noise_repeated = false;  // two releases of one kind share key epoch, step and attempt, hence their noise
};

double sampling_rate(const Event& event);  // 1 for an event without sampling

Spent spent_by(const LedgerContents& ledger);
std::unique_ptr<Accountant> account(const Spent& spent, const std::string& name, Adjacency adjacency);

// ---- what voids a claim (void_claims.cpp)

// Why nothing can be said of a run with groups or buffers; empty: it can.
std::string broken_rule_of_correlation(const LedgerContents& ledger);
// Steps from one of a unit to its next, where each is in every so many-th: units / expected_batch, rounded up. None if
// the header does not state both.
std::optional<int64_t> planned_separation(const nlohmann::json& header);
// Of the charged events, as one text; "none (…)" if they assume none.
std::string assumed_sampler(const Spent& spent);
// What the run said of itself. Throws std::invalid_argument unless it is an object.
nlohmann::json facts_of_header(const nlohmann::json& header);
// Each reason for which the releases are bounded by nothing, as the end of a sentence. facts: the header's, or these
// with what is stated beside the ledger.
std::vector<std::string> void_reasons(const nlohmann::json& header, const Spent& spent, const nlohmann::json& facts);

// Whether the run said that it shows numbers without noise beside its releases.
bool shows_unnoised(const nlohmann::json& facts);

// ---- sections from the ledger, again

nlohmann::json population_and_steps(const LedgerContents& ledger, const Spent& spent);
nlohmann::json mechanism(const LedgerContents& ledger, const Spent& spent);
nlohmann::json sampler_section(const Spent& spent, const nlohmann::json& facts);
nlohmann::json provenance(const LedgerContents& ledger);

// ---- curves (curves.cpp); `reported` is the claim's bound at delta, which is not computed a second time

// Epsilon at deltas from 1e-1 down to 1e-15 and at the reported one, what they bound together, and mu-GDP.
nlohmann::json privacy_curve(const Accountant& engine, Delta delta, const EpsilonBound& reported);
// Epsilon at delta after each of up to some thirty prefixes of the ledger.
nlohmann::json spending(const Spent& spent, const std::string& accountant, Adjacency adjacency, Delta delta,
                        const EpsilonBound& reported);
// The same run under every engine: {"contour": {delta, epsilon, detail, direction, curve}, …}. The claim's own engine
// has no curve here; an engine that cannot bound the run is {"refused": why}.
nlohmann::json accountants(const Spent& spent, Adjacency adjacency, Delta delta, const EpsilonBound& reported);
// The guarantee of a person with k units (Dwork, Roth 2014, Thm. 2.2 iterated): a point (e, d) of the curve gives
// (k·e, d·(e^(k·e) - 1)/(e^e - 1)). The smallest k·e whose delta is still at most the reported one; null if the curve
// ends before.
nlohmann::json group_guarantee(const nlohmann::json& privacy_curve, const nlohmann::json& units_per_person,
                               Delta delta);

// ---- wording (wording.cpp)

nlohmann::json adjacency_section(Adjacency adjacency);
nlohmann::json not_promised(const std::string& unit, bool per_person, bool unnoised_shown);
nlohmann::json assumptions(const LedgerContents& ledger, const Spent& spent);
// The claim, or why there is none, as one paragraph.
std::string statement(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit,
                      const std::vector<std::string>& reasons, bool unnoised_shown);
// The meaning of the claim for somebody who is no expert, as a list of sentences; empty if nothing is claimed.
nlohmann::json plain_words(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit,
                           const nlohmann::json& membership_bounds);
// The first sentence of plain_words in reports of version 0.1.0, for verify. It claimed too much: delta is no
// probability of an exception.
std::string former_first_words(double epsilon, Delta delta, Adjacency adjacency, const std::string& unit);
// 2.99981 as "2.9999": never less than the number.
std::string rounded_up(double value, int digits = 4);
// 1e-06 as "10⁻⁶", 1.23456e-05 as "1.24×10⁻⁵", 0.01 as "0.01": three digits, rounded up.
std::string small_number(double value);
// 2.3456e12 as "2.35×10¹²": three digits, rounded up. value >= 1.
std::string large_number(double value);

}  // namespace ghostshard::accountant::report_parts
