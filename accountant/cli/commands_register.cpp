#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/budget_register.h"
#include "accountant/cli/commands.h"
#include "accountant/cli/numbers.h"

namespace ghostshard::accountant::cli {
namespace {

using nlohmann::json;

struct RegisterOptions {
  std::string file, data_set, limit, close;
  bool json = false;
};

json releases_of(const BudgetSession& session) {
  json releases = json::array();
  for (const Charge& charge : session.charges)
    releases.push_back({{"event", to_json(charge.event)}, {"count", charge.count}});
  return releases;
}

json session_json(const BudgetSession& session) {
  json line = {{"run", session.run},    {"session", session.session},
               {"unit", session.unit},  {"charged", releases_of(session)},
               {"plan", nullptr},       {"keeps_plan", session.keeps_plan},
               {"ended", session.ended}};
  if (session.plan) line["plan"] = {{"event", to_json(session.plan->event)}, {"count", session.plan->count}};
  return line;
}

json bracket(const EpsilonBound& bound) { return {{"lower", bound.lower}, {"upper", bound.upper}}; }

json data_json(const BudgetRecords& records, const std::string& data) {
  const DataBudget budget = budget_of(records, data);
  json sessions = json::array();
  for (const BudgetSession& session : records.sessions)
    if (session.data == data) sessions.push_back(session_json(session));
  return {{"data_set", data},
          {"limit", {{"epsilon", budget.limit.epsilon.value()}, {"delta", budget.limit.delta.value()}}},
          {"runs", budget.runs},
          {"epsilon_charged", bracket(budget.charged)},
          {"epsilon_with_plans", bracket(budget.planned)},
          {"sessions", sessions}};
}

void print_session(const BudgetSession& session) {
  int64_t count = 0;
  for (const Charge& charge : session.charges) count += charge.count;
  std::cout << "  run " << session.run << ", session " << session.session << ": " << count << " releases charged";
  if (session.plan) std::cout << ", " << session.plan->count << " planned";
  std::cout << (session.ended ? ", ended" : session.keeps_plan ? ", under way or lost" : ", closed") << '\n';
}

void print_data(const BudgetRecords& records, const std::string& data) {
  const DataBudget budget = budget_of(records, data);
  std::cout << "Data set " << data << '\n'
            << "  epsilon <= " << up(budget.charged.upper, 4) << " charged, <= " << up(budget.planned.upper, 4)
            << " with what is planned, of " << exact(budget.limit.epsilon.value()) << " at delta "
            << exact(budget.limit.delta.value()) << "; " << budget.runs << (budget.runs == 1 ? " run\n" : " runs\n");
  for (const BudgetSession& session : records.sessions)
    if (session.data == data) print_session(session);
}

// Throws std::invalid_argument unless the register is there: a command never makes one.
BudgetRegister open_existing(const std::string& file, const BudgetRecords& records) {
  return BudgetRegister::open(file, records.adjacency);
}

int run_register(const RegisterOptions& o) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(o.file, ignored))
    throw std::invalid_argument("FILE must be a register of budgets, got " + o.file);
  if (!o.limit.empty() && o.data_set.empty())
    throw std::invalid_argument("--limit needs --data-set: the fingerprint of the data whose limit it is");
  BudgetRecords records = read_budget_register(o.file);
  if (!o.limit.empty())
    open_existing(o.file, records).change_limit(o.data_set, Epsilon(parse_number("--limit", o.limit)));
  if (!o.close.empty()) open_existing(o.file, records).close(o.close);
  if (!o.limit.empty() || !o.close.empty()) records = read_budget_register(o.file);
  if (!o.data_set.empty() && !records.limits.contains(o.data_set))
    throw std::invalid_argument("--data-set must be in the register, got " + o.data_set);
  if (records.dropped_partial_line)
    std::cerr << "note: the last line of " << o.file << " is cut short, as by a crash: it had permitted nothing yet\n";
  json list = json::array();
  for (const auto& [data, limit] : records.limits) {
    if (!o.data_set.empty() && data != o.data_set) continue;
    if (o.json)
      list.push_back(data_json(records, data));
    else
      print_data(records, data);
  }
  if (o.json) std::cout << json{{"head", records.head}, {"data_sets", list}}.dump(2) << '\n';
  return 0;
}

}  // namespace

void add_register(CLI::App& program, Action& action) {
  auto o = std::make_shared<RegisterOptions>();
  CLI::App* command =
      program.add_subcommand("register", "All runs on a data set together: what a register of budgets holds.");
  command->footer(
      "A run names the register with --budget-register FILE. Examples:\n"
      "  ghostshard account register budgets.jsonl\n"
      "  ghostshard account register budgets.jsonl --data-set 6f1d… --limit 12\n"
      "  ghostshard account register budgets.jsonl --close 5c0e…     (a run that crashed and will not go on)");
  command->add_option("FILE", o->file, "the register")->required();
  command->add_option("--data-set", o->data_set, "show this one alone: its keyed fingerprint");
  command->add_option("--limit", o->limit, "set the limit of --data-set to this epsilon");
  command->add_option("--close", o->close, "give up what is planned for this run and not charged; charges stay");
  command->add_flag("--json", o->json, "print one JSON object");
  on_chosen<RegisterOptions>(*command, action, o, run_register);
}

}  // namespace ghostshard::accountant::cli
