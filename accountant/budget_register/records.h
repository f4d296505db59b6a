// The lines of a register of budgets, and the sums over them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "accountant/budget_register.h"
#include "accountant/ledger/chain.h"

namespace ghostshard::accountant {

nlohmann::json to_json(const Charge& charge);

// Applies one line. Throws std::invalid_argument with the rule that it breaks.
void apply_line(BudgetRecords& records, const nlohmann::json& line, int64_t number);

// Reads all lines into `records`. each: is given every line's hash.
Chain read_records(const std::filesystem::path& path, std::string_view bytes, BudgetRecords& records,
                   const std::function<void(const std::string& hash)>& each);

BudgetSession* find_session(BudgetRecords& records, const std::string& session);

// Charges of all sessions on the data, and with `plans` what is planned beyond them. without_run: its plans are left
// out, since it is about to state another one.
std::vector<Charge> spent_on(const BudgetRecords& records, const std::string& data, bool plans,
                             const std::string& without_run = "");

// A proven upper end and its bracket.
EpsilonBound bound_of(const std::vector<Charge>& charges, Adjacency adjacency, Delta delta);

}  // namespace ghostshard::accountant
