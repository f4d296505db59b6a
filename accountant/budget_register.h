// The register of budgets: what all runs on one data set spend together, and the limit that they keep.
//
// A file of JSON lines in a hash chain (accountant/ledger/chain.h), which many runs append to, one after the other
// under a lock. Beside FILE lies FILE.key: 32 random bytes, mode 0600, made with it. A data set is known by its
// fingerprint, the HMAC-SHA256 of a digest of its content under that key, so that nobody without the key can test a
// guess of the data. Fingerprints, counts of releases and epsilon are public; the key is not.
//
//   {"type":"header","schema":"ghostshard.budget_register/1","adjacency":"zero-out","key_commitment":"…",…}
//   {"type":"limit","data":"…","epsilon":8.0,"delta":1e-06,…}
//   {"type":"session","data":"…","run":"…","session":"…","unit":"text","plan":{"event":{…},"count":60},…}
//   {"type":"charge","session":"…","event":{…},"count":3,…}      up to so many releases in all, written before them
//   {"type":"end","session":"…","charges":[{"event":{…},"count":60}],…}
//   {"type":"close","session":"…",…}
//
// A run has a session for each process that trains: whoever resumes a run, or a copy of its folder, begins another one.
// What a session was charged counts for ever, and only the session itself may lower it, to what it made, when it ends.
// So no copy, crash or restored backup can make a release uncounted; a crash costs what was charged ahead of use, at
// most a hundredth of the plan. The rest of a plan is kept for its run until its session ends, is closed or is followed
// by another session of the run: two runs that begin together cannot promise the same budget twice. All charges and
// plans are composed by an accountant, and its upper end must stay within the limit.
//
// Not seen: the same texts in a file prepared anew, and whoever leaves the register out.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

inline constexpr const char* kBudgetRegisterSchema = "ghostshard.budget_register/1";

struct BudgetLimit {
  Epsilon epsilon;
  Delta delta;
};

struct BudgetSession {
  std::string data, run, session;  // fingerprint; ids, 32 hexadecimal digits each
  std::string unit;                // of privacy
  std::optional<Charge> plan;      // none: it is not known how many steps there will be
  std::vector<Charge> charges = {};
  bool keeps_plan = true;  // neither ended, nor closed, nor followed by another session of the run
  bool ended = false;
};

struct BudgetRecords {
  Adjacency adjacency = Adjacency::kZeroOut;
  std::string key_commitment;
  std::map<std::string, BudgetLimit> limits;  // by fingerprint
  std::vector<BudgetSession> sessions;        // in the order in which they began
  std::string head;
  bool dropped_partial_line = false;
};

// What the runs on one data set may and do spend.
struct DataBudget {
  BudgetLimit limit;
  int64_t runs = 0, sessions = 0;
  EpsilonBound charged;  // by all sessions together, at the limit's delta; `upper` is the claim
  EpsilonBound planned;  // with what their plans keep
};

// The run that asks would break the limit of its data.
class BudgetExceeded : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Needs no key. Throws as read_ledger does.
BudgetRecords read_budget_register(const std::filesystem::path& path);
// std::invalid_argument unless the data has a limit there.
DataBudget budget_of(const BudgetRecords& records, const std::string& data);
// The same for a report (accountant/report.h, tuning.budget_register).
nlohmann::json budget_facts(const BudgetRecords& records, const std::string& data);

// For one thread. What it has once read or written must still be there at the next call.
class BudgetRegister {
 public:
  // Makes register and key if neither is there. Throws std::invalid_argument if one is there without the other, if the
  // key is another register's or may be read by others, or if the register is of another adjacency; InvalidLedger as
  // read_ledger does; std::runtime_error if the system refuses.
  static BudgetRegister open(const std::filesystem::path& path, Adjacency adjacency);

  // Of data with this digest.
  std::string fingerprint(std::string_view digest) const;

  // Every call is one transaction: durable when it returns, nothing written if it throws. It waits at most a minute for
  // another process's (std::runtime_error then). std::invalid_argument if the register lacks what this object has seen
  // in it: it was put back to an earlier state.

  // The first limit of the data, or the one that it has already: another one is refused, as is data without a limit if
  // none is given (std::invalid_argument).
  BudgetLimit agree_on_limit(const std::string& data, std::optional<Epsilon> epsilon, Delta delta);
  void change_limit(const std::string& data, Epsilon epsilon);
  // Throws BudgetExceeded unless so much more fits, beside all that is charged and planned by other runs than `run`.
  void check(const std::string& data, const std::string& run, const Charge& more);
  // charged: of a run that goes on, how many releases its ledger has; it must have a session here, and the register all
  // of them, else it was put back to an earlier state. Throws BudgetExceeded unless the plan fits;
  // std::invalid_argument if the session's id is used already, the data is registered with another unit, or the run
  // that goes on is not known or was charged less.
  void begin(const BudgetSession& session, std::optional<int64_t> charged = {});
  // Charges the session, which has begun, so many releases more. Throws BudgetExceeded unless they fit.
  void charge(const std::string& session, const Charge& more);
  // made: of each event, at most what was charged. What is not named was not made.
  void end(const std::string& session, const std::vector<Charge>& made);
  // Gives up what plans still keep for a run that will not go on. Its charges stay.
  void close(const std::string& run);

  // As budget_facts.
  nlohmann::json facts(const std::string& data);

  const std::filesystem::path& path() const { return path_; }

 private:
  BudgetRegister(std::filesystem::path path, std::string key) : path_(std::move(path)), key_(std::move(key)) {}
  std::filesystem::path path_;
  std::string key_;
  std::string seen_;  // hash of the last line that was there
};

// How many releases a session is charged ahead of use.
int64_t budget_block(int64_t planned);

}  // namespace ghostshard::accountant
