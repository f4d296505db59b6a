#include "accountant/budget_register.h"

#include <algorithm>

#include "accountant/budget_register/records.h"
#include "accountant/budget_register/transaction.h"
#include "accountant/ledger/sha256.h"
#include "accountant/plain_number.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;

std::string number(double value) { return plain_number(value, std::chars_format::general, 6); }

// Throws BudgetExceeded unless all that was charged and planned stays within the limit of the data.
void require_within(const BudgetRecords& now, const BudgetRecords& then, const std::vector<Charge>& spent,
                    const std::string& data, const std::filesystem::path& path) {
  const BudgetLimit limit = then.limits.at(data);
  const double epsilon = bound_of(spent, then.adjacency, limit.delta).upper;
  if (epsilon <= limit.epsilon.value()) return;  // not so for NaN
  const DataBudget before = budget_of(now, data);
  throw BudgetExceeded("the budget register " + path.string() + " limits all runs on this data to epsilon " +
                       number(limit.epsilon.value()) + " at delta " + number(limit.delta.value()) +
                       ", and with this run it would be " + number(epsilon) + " (" + std::to_string(before.runs) +
                       " run(s) are registered, with epsilon " + number(before.charged.upper) + " charged and " +
                       number(before.planned.upper) + " planned). `ghostshard account register " + path.string() +
                       "` shows them");
}

const BudgetLimit& limit_of(const BudgetRecords& records, const std::string& data) {
  const auto found = records.limits.find(data);
  if (found == records.limits.end())
    throw std::invalid_argument("the budget register has no limit for the data set " + data);
  return found->second;
}

// A run is charged here before its ledger is: a register that has less was put back to an earlier state.
void require_all_charged(const BudgetRecords& now, const std::string& run, int64_t charged,
                         const std::filesystem::path& path) {
  int64_t here = 0;
  bool known = false;
  for (const BudgetSession& session : now.sessions) {
    if (session.run != run) continue;
    known = true;
    for (const Charge& charge : session.charges) here += charge.count;
  }
  if (!known)
    throw std::invalid_argument("the budget register " + path.string() + " does not know the run " + run +
                                ", which has made releases before: name the register that it began with");
  if (here < charged)
    throw std::invalid_argument("the budget register " + path.string() + " must hold all that the run was charged (" +
                                std::to_string(charged) + " by its ledger), it holds " + std::to_string(here) +
                                ": it was put back to an earlier state, so what all runs have spent cannot be known");
}

json limit_line(const std::string& data, Epsilon epsilon, Delta delta) {
  return {{"type", "limit"}, {"data", data}, {"epsilon", epsilon.value()}, {"delta", delta.value()}};
}

}  // namespace

BudgetRegister BudgetRegister::open(const std::filesystem::path& path, Adjacency adjacency) {
  return {path, register_key(path, adjacency)};
}

std::string BudgetRegister::fingerprint(std::string_view digest) const {
  return hmac_sha256_hex(key_, "budget register: data " + std::string(digest));
}

BudgetLimit BudgetRegister::agree_on_limit(const std::string& data, std::optional<Epsilon> epsilon, Delta delta) {
  RegisterTransaction transaction(path_, seen_);
  const auto found = transaction.records().limits.find(data);
  if (found == transaction.records().limits.end()) {
    if (!epsilon)
      throw std::invalid_argument("the budget register " + path_.string() +
                                  " does not know this data: its first run must give a limit (--budget-limit EPSILON)");
    transaction.append(limit_line(data, *epsilon, delta));
    return {*epsilon, delta};
  }
  if (epsilon && *epsilon != found->second.epsilon)
    throw std::invalid_argument("the budget register " + path_.string() + " limits this data to epsilon " +
                                number(found->second.epsilon.value()) + ", not " + number(epsilon->value()) +
                                "; to change it: ghostshard account register " + path_.string() + " --data-set " +
                                data + " --limit " + number(epsilon->value()));
  return found->second;
}

void BudgetRegister::change_limit(const std::string& data, Epsilon epsilon) {
  RegisterTransaction transaction(path_, seen_);
  transaction.append(limit_line(data, epsilon, limit_of(transaction.records(), data).delta));
}

void BudgetRegister::check(const std::string& data, const std::string& run, const Charge& more) {
  const RegisterTransaction transaction(path_, seen_);
  const BudgetRecords& records = transaction.records();
  (void)limit_of(records, data);
  std::vector<Charge> spent = spent_on(records, data, true, run);
  spent.push_back(more);
  require_within(records, records, spent, data, path_);
}

void BudgetRegister::begin(const BudgetSession& session, std::optional<int64_t> charged) {
  RegisterTransaction transaction(path_, seen_);
  const json line = {{"type", "session"},    {"data", session.data},
                     {"run", session.run},   {"session", session.session},
                     {"unit", session.unit}, {"plan", session.plan ? to_json(*session.plan) : json()}};
  const BudgetRecords& now = transaction.records();
  for (const BudgetSession& earlier : now.sessions) {
    if (earlier.data == session.data && earlier.unit != session.unit)
      throw std::invalid_argument("the budget register " + path_.string() + " counts units of privacy \"" +
                                  earlier.unit + "\" of this data, the run's are \"" + session.unit + '"');
  }
  if (charged) require_all_charged(now, session.run, *charged, path_);
  const BudgetRecords then = transaction.with(line);
  require_within(now, then, spent_on(then, session.data, true), session.data, path_);
  transaction.append(line);
}

void BudgetRegister::charge(const std::string& session, const Charge& more) {
  RegisterTransaction transaction(path_, seen_);
  BudgetRecords now = transaction.records();
  const BudgetSession* known = find_session(now, session);
  if (known == nullptr) throw std::invalid_argument("the budget register has no session " + session);
  int64_t charged = 0;
  for (const Charge& charge : known->charges)
    if (charge.event == more.event) charged = charge.count;
  const json line = {
      {"type", "charge"}, {"session", session}, {"event", to_json(more.event)}, {"count", charged + more.count}};
  const BudgetRecords then = transaction.with(line);
  require_within(now, then, spent_on(then, known->data, true), known->data, path_);
  transaction.append(line);
}

void BudgetRegister::end(const std::string& session, const std::vector<Charge>& made) {
  RegisterTransaction transaction(path_, seen_);
  json charges = json::array();
  for (const Charge& charge : made) charges.push_back(to_json(charge));
  transaction.append({{"type", "end"}, {"session", session}, {"charges", charges}});
}

void BudgetRegister::close(const std::string& run) {
  RegisterTransaction transaction(path_, seen_);
  std::vector<std::string> sessions;
  for (const BudgetSession& session : transaction.records().sessions)
    if (session.run == run && session.keeps_plan) sessions.push_back(session.session);
  if (sessions.empty()) throw std::invalid_argument("no run " + run + " keeps a plan in the budget register");
  for (const std::string& session : sessions) transaction.append({{"type", "close"}, {"session", session}});
}

nlohmann::json BudgetRegister::facts(const std::string& data) {
  return budget_facts(RegisterTransaction(path_, seen_).records(), data);
}

int64_t budget_block(int64_t planned) {
  constexpr int64_t kBlocks = 100;
  return std::max<int64_t>(1, planned / kBlocks);
}

}  // namespace ghostshard::accountant
