// Statements of a private run about itself, for its report (accountant/report.h, "facts").
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "dp/run/private_run.h"

namespace ghostshard::dp {

// For the ledger's header, before the first release. The options' own facts come over these.
nlohmann::json run_facts(const DpPlan& plan, const RunKey& key, const fsdp::ShardedModel& model,
                         const std::string& optimizer, const RunOptions& options);

// For the report of a run that was resumed.
nlohmann::json resumption_facts(const Extent& extent);

}  // namespace ghostshard::dp
