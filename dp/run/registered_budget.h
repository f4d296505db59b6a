// A run's place in the register of budgets of its data (accountant/budget_register.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/budget_register.h"
#include "dp/mechanism/plan.h"
#include "fsdp/mesh.h"

namespace ghostshard::dp {

struct BudgetRegisterOptions {
  std::filesystem::path file;  // rank 0 alone reads and writes it
  // Of a digest of the data's content (dp/run/digest.h).
  std::string data_digest;
  // Of all runs on the data together, at this run's delta. The first run must give it, later ones may.
  std::optional<accountant::Epsilon> limit = {};
};

// One session of the run: registers its plan before the first step, charges releases before they are used.
class RegisteredBudget {
 public:
  // For rank 0, which registers a session of `steps` steps. run: the run's id, session: this process's; they differ if
  // the run was resumed. Returns how many steps were planned: of a resumed run, which lost what it was charged ahead,
  // as many as the limit has room for. Throws as BudgetRegister does, BudgetExceeded if the plan does not fit, or
  // nothing of it.
  int64_t begin(const BudgetRegisterOptions& options, const DpPlan& plan, const std::string& run,
                const std::string& session, int64_t steps);
  // For rank 0: the run does not come to its first step.
  void give_up() const;
  // Makes sure that one more release is charged. AgreedFailure if the limit leaves no room: only a lowered limit, or a
  // copy of the run that was resumed, can have taken what was planned. A collective.
  void charge_one(const DpPlan& plan, int64_t steps, fsdp::Mesh& mesh);
  // No further release comes. Again: nothing. A collective.
  void end(const DpPlan& plan, fsdp::Mesh& mesh);

  // For rank 0 after begin(): the data's keyed fingerprint.
  const std::string& data() const { return data_; }
  // For the report, on rank 0: what all runs on the data have been charged.
  nlohmann::json facts() const;

 private:
  std::optional<accountant::BudgetRegister> register_;  // rank 0
  std::string data_, session_;
  int64_t used_ = 0, charged_ = 0;
  bool ended_ = false;
};

}  // namespace ghostshard::dp
