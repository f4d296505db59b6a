#include "accountant/budget_register/records.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "accountant/ledger/durable_file.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;

void require(bool holds, const std::string& rule) {
  if (!holds) throw std::invalid_argument(rule);
}

template <size_t N>
void require_fields(const json& line, const std::array<const char*, N>& keys) {
  for (const char* key : keys) require(line.contains(key), std::string("must have ") + key);
  require(line.size() == N, "must have no further fields");
}

std::string hex_field(const json& line, const char* key, size_t digits) {
  std::string text = text_field(line, key);
  require(text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos,
          std::string(key) + " must be " + std::to_string(digits) + " hexadecimal digits, got \"" + text + '"');
  return text;
}

// Sums of counts stay far from what an integer holds.
constexpr int64_t kMostReleases = 1'000'000'000'000;

Charge charge_from_json(const json& line) {
  Charge charge{event_from_json(line.at("event")), count_field(line, "count")};
  require(charge.count <= kMostReleases, "count must be at most 1e12, got " + std::to_string(charge.count));
  return charge;
}

int64_t* count_of(std::vector<Charge>& charges, const Event& event) {
  for (Charge& charge : charges)
    if (charge.event == event) return &charge.count;
  return nullptr;
}

void add_to(std::vector<Charge>& charges, const Charge& more) {
  if (int64_t* count = count_of(charges, more.event))
    *count += more.count;
  else
    charges.push_back(more);
}

void apply_header(BudgetRecords& records, const json& line) {
  require(text_field(line, "type") == "header", "the first line must be of type header");
  const std::string schema = text_field(line, "schema");
  require(schema == kBudgetRegisterSchema,
          std::string("schema must be ") + kBudgetRegisterSchema + ", got \"" + schema + '"');
  records.adjacency = adjacency_from_string(text_field(line, "adjacency"));
  records.key_commitment = hex_field(line, "key_commitment", 64);
}

void apply_session(BudgetRecords& records, const json& line) {
  require_fields(line, std::array{"type", "data", "run", "session", "unit", "plan", "previous"});
  BudgetSession session{.data = hex_field(line, "data", 64),
                        .run = hex_field(line, "run", 32),
                        .session = hex_field(line, "session", 32),
                        .unit = text_field(line, "unit"),
                        .plan = {}};
  if (!line.at("plan").is_null()) session.plan = charge_from_json(line.at("plan"));
  require(records.limits.contains(session.data), "a session's data must have a limit");
  require(find_session(records, session.session) == nullptr, "a session must begin once");
  for (BudgetSession& earlier : records.sessions) {
    if (earlier.run != session.run) continue;
    require(earlier.data == session.data, "the sessions of a run must be on the same data");
    earlier.keeps_plan = false;
  }
  records.sessions.push_back(std::move(session));
}

void apply_charge(BudgetSession& session, const json& line) {
  require_fields(line, std::array{"type", "session", "event", "count", "previous"});
  require(!session.ended, "a session that ended must not be charged");
  const Charge charge = charge_from_json(line);
  int64_t* before = count_of(session.charges, charge.event);
  require(before == nullptr || charge.count > *before, "a charge must be above the one before");
  if (before != nullptr)
    *before = charge.count;
  else
    session.charges.push_back(charge);
}

void apply_end(BudgetSession& session, const json& line) {
  require_fields(line, std::array{"type", "session", "charges", "previous"});
  require(!session.ended, "a session must end once");
  std::vector<Charge> made;
  for (const json& item : line.at("charges")) {
    const Charge charge = charge_from_json(item);
    const int64_t* charged = count_of(session.charges, charge.event);
    require(charged != nullptr && charge.count <= *charged && count_of(made, charge.event) == nullptr,
            "a session must end with at most what it was charged");
    made.push_back(charge);
  }
  session.charges = std::move(made);
  session.ended = true;
  session.keeps_plan = false;
}

}  // namespace

nlohmann::json to_json(const Charge& charge) { return {{"event", to_json(charge.event)}, {"count", charge.count}}; }

BudgetSession* find_session(BudgetRecords& records, const std::string& session) {
  const auto found = std::find_if(records.sessions.begin(), records.sessions.end(),
                                  [&](const BudgetSession& known) { return known.session == session; });
  return found == records.sessions.end() ? nullptr : &*found;
}

void apply_line(BudgetRecords& records, const json& line, int64_t number) {
  if (number == 1) return apply_header(records, line);
  const std::string type = text_field(line, "type");
  if (type == "limit") {
    require_fields(line, std::array{"type", "data", "epsilon", "delta", "previous"});
    records.limits.insert_or_assign(hex_field(line, "data", 64), BudgetLimit{Epsilon(line.at("epsilon").get<double>()),
                                                                             Delta(line.at("delta").get<double>())});
    return;
  }
  if (type == "session") return apply_session(records, line);
  require(type == "charge" || type == "end" || type == "close",
          "must be a limit, session, charge, end or close of schema " + std::string(kBudgetRegisterSchema) +
              ", got \"" + type + '"');
  BudgetSession* session = find_session(records, hex_field(line, "session", 32));
  if (session == nullptr) throw std::invalid_argument("must be about a session that has begun");
  if (type == "charge") return apply_charge(*session, line);
  if (type == "end") return apply_end(*session, line);
  require_fields(line, std::array{"type", "session", "previous"});
  session->keeps_plan = false;
}

Chain read_records(const std::filesystem::path& path, std::string_view bytes, BudgetRecords& records,
                   const std::function<void(const std::string& hash)>& each) {
  Chain chain = read_chain("budget register", path, bytes, [&](const json& line, int64_t number, const auto& hash) {
    apply_line(records, line, number);
    each(hash);
  });
  records.head = chain.head;
  records.dropped_partial_line = chain.dropped_partial_line;
  return chain;
}

BudgetRecords read_budget_register(const std::filesystem::path& path) {
  const OwnedDescriptor descriptor = open_file(path, O_RDONLY);
  BudgetRecords records;
  (void)read_records(path, read_all(descriptor.get(), path), records, [](const std::string&) {});
  return records;
}

std::vector<Charge> spent_on(const BudgetRecords& records, const std::string& data, bool plans,
                             const std::string& without_run) {
  std::vector<Charge> spent;
  for (BudgetSession session : records.sessions) {
    if (session.data != data) continue;
    if (plans && session.plan && session.keeps_plan && session.run != without_run) {
      int64_t* charged = count_of(session.charges, session.plan->event);
      if (charged == nullptr)
        session.charges.push_back(*session.plan);
      else
        *charged = std::max(*charged, session.plan->count);
    }
    for (const Charge& charge : session.charges) add_to(spent, charge);
  }
  return spent;
}

EpsilonBound bound_of(const std::vector<Charge>& charges, Adjacency adjacency, Delta delta) {
  const auto accountant = make_accountant("contour", adjacency);
  for (const Charge& charge : charges) accountant->compose(charge.event, charge.count);
  return accountant->epsilon(delta);
}

DataBudget budget_of(const BudgetRecords& records, const std::string& data) {
  const auto limit = records.limits.find(data);
  require(limit != records.limits.end(), "the register must have a limit for the data set " + data);
  DataBudget budget{.limit = limit->second, .charged = {}, .planned = {}};
  std::vector<std::string> runs;
  for (const BudgetSession& session : records.sessions) {
    if (session.data != data) continue;
    ++budget.sessions;
    if (std::find(runs.begin(), runs.end(), session.run) == runs.end()) runs.push_back(session.run);
  }
  budget.runs = static_cast<int64_t>(runs.size());
  budget.charged = bound_of(spent_on(records, data, false), records.adjacency, budget.limit.delta);
  budget.planned = bound_of(spent_on(records, data, true), records.adjacency, budget.limit.delta);
  return budget;
}

nlohmann::json budget_facts(const BudgetRecords& records, const std::string& data) {
  const DataBudget budget = budget_of(records, data);
  const double upper = budget.charged.upper;
  return {{"data_fingerprint", data},
          {"runs_on_this_data", budget.runs},
          {"epsilon_of_all_runs_at_most", std::isfinite(upper) ? json(upper) : json()},
          {"delta", budget.limit.delta.value()},
          {"limit", budget.limit.epsilon.value()},
          {"counted", "the runs that named this register and trained on this very file, this one among them"}};
}

}  // namespace ghostshard::accountant
