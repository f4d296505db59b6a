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

// What a register is charged for so many steps of a session: if units are dealt to groups, the rounds of the group that
// has the most, since a unit is in no other group's steps; sessions add up to at least what a unit spends. And the most
// steps that so many charges pay for.
int64_t registered_charges_of(const DpPlan& plan, int64_t steps);
int64_t steps_of_registered(const DpPlan& plan, int64_t charges);

// One session of the run: registers its plan before the first step, charges releases before they are used.
class RegisteredBudget {
 public:
  // For rank 0, which registers a session of so many charges. run: the run's id, session: this process's; they differ
  // if the run was resumed. spent: the charges of one unit in its ledger, of which the register must know. Returns how
  // many were planned: of a resumed run, which lost what it was charged ahead, as many as the limit has room for.
  // Throws as BudgetRegister does, BudgetExceeded if the plan does not fit, or nothing of it.
  int64_t begin(const BudgetRegisterOptions& options, const DpPlan& plan, const std::string& run,
                const std::string& session, int64_t charges, int64_t spent);
  // For rank 0: the run does not come to its first step.
  void give_up();
  // Makes sure that one more charge, of `charges` in the session, is made. AgreedFailure if the limit leaves no room:
  // only a lowered limit, or a copy of the run that was resumed, can have taken what was planned. A collective.
  void charge_one(const DpPlan& plan, int64_t charges, fsdp::Mesh& mesh);
  // No further release comes. Again: nothing. A collective.
  void end(const DpPlan& plan, fsdp::Mesh& mesh);

  // For rank 0 after begin(): the data's keyed fingerprint.
  const std::string& data() const { return data_; }
  // For the report, on rank 0: what all runs on the data have been charged.
  nlohmann::json facts();

 private:
  std::optional<accountant::BudgetRegister> register_;  // rank 0
  std::string data_, session_;
  int64_t used_ = 0, charged_ = 0;
  bool ended_ = false;
};

}  // namespace ghostshard::dp
