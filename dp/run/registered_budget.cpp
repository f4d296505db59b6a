#include "dp/run/registered_budget.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "fsdp/agree.h"

namespace ghostshard::dp {
namespace {

// The most of `charges` further charges that the limit has room for.
int64_t charges_that_fit(accountant::BudgetRegister& budgets, const std::string& data, const std::string& run,
                         const DpPlan& plan, int64_t charges) {
  const auto fits = [&](int64_t count) {
    try {
      budgets.check(data, run, {plan.event(), count});
      return true;
    } catch (const accountant::BudgetExceeded&) {
      return false;
    }
  };
  int64_t fitting = 0;
  for (int64_t beyond = charges; beyond - fitting > 1;) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

}  // namespace

int64_t registered_charges_of(const DpPlan& plan, int64_t steps) {
  return plan.config().groups() > 1 ? plan.rounds().most_after(0, steps) : plan.charges_of(steps);
}

int64_t steps_of_registered(const DpPlan& plan, int64_t charges) {
  return plan.config().groups() > 1 ? charges * plan.config().groups() : plan.steps_of(charges);
}

int64_t RegisteredBudget::begin(const BudgetRegisterOptions& options, const DpPlan& plan, const std::string& run,
                                const std::string& session, int64_t charges, int64_t spent) {
  register_ = accountant::BudgetRegister::open(options.file, plan.config().adjacency);
  data_ = register_->fingerprint(options.data_digest);
  session_ = session;
  (void)register_->agree_on_limit(data_, options.limit, plan.delta());
  const auto begin_with = [&](int64_t planned) {
    register_->begin({.data = data_,
                      .run = run,
                      .session = session,
                      .unit = plan.config().unit_of_privacy,
                      .plan = accountant::Charge{plan.event(), planned}},
                     run == session ? std::nullopt : std::optional(spent));
    return planned;
  };
  try {
    return begin_with(charges);
  } catch (const accountant::BudgetExceeded&) {
    const int64_t fitting = run == session ? 0 : charges_that_fit(*register_, data_, run, plan, charges);
    if (fitting == 0) throw;
    return begin_with(fitting);
  }
}

void RegisteredBudget::give_up() {
  if (register_) register_->end(session_, {});
}

void RegisteredBudget::charge_one(const DpPlan& plan, int64_t charges, fsdp::Mesh& mesh) {
  if (used_ == charged_) {
    const int64_t planned = std::max<int64_t>(1, charges - charged_);
    const int64_t more = std::min(accountant::budget_block(charges), planned);
    fsdp::agree(mesh, [&] {
      if (register_) register_->charge(session_, {plan.event(), more});
    });
    charged_ += more;
  }
  ++used_;
}

void RegisteredBudget::end(const DpPlan& plan, fsdp::Mesh& mesh) {
  if (ended_) return;
  ended_ = true;
  fsdp::agree(mesh, [&] {
    if (!register_) return;
    std::vector<accountant::Charge> made;
    if (used_ > 0) made.push_back({plan.event(), used_});
    register_->end(session_, made);
  });
}

nlohmann::json RegisteredBudget::facts() { return register_->facts(data_); }

}  // namespace ghostshard::dp
