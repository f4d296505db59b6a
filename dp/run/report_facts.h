// Statements of a private run about itself, for its report (accountant/report.h, "facts").
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dp/run/private_run.h"

namespace ghostshard::dp {

// For the ledger's header, before the first release. The options' own facts come over these. parts: all of the run's.
nlohmann::json run_facts(const DpPlan& plan, const RunKey& key, const fsdp::ShardedModel& model,
                         const std::vector<Part>& parts, const std::string& optimizer, const RunOptions& options);

// For the header too, of a run in a budget register. data: the keyed fingerprint.
nlohmann::json register_facts(const std::string& data);

// For the report. weights: the digest of those that are released.
nlohmann::json facts_at_the_end(const std::string& weights);

// For the report of a run that was resumed. charged_again: PrivateRun::charged_again().
nlohmann::json resumption_facts(const Extent& extent, const DpPlan& plan, bool charged_again);

}  // namespace ghostshard::dp
