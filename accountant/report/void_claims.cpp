// What makes a ledger's numbers a bound of nothing. Reports, and every command that reads a ledger, ask here.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "accountant/blt_rows.h"
#include "accountant/report/parts.h"

namespace ghostshard::accountant::report_parts {
namespace {

using nlohmann::json;

// Rows of buffered noise are derived for zero-out adjacency, and each release is charged as the row that it was
// (accountant/blt_rows.h). Otherwise the rule that is broken.
std::string broken_rule_of_buffers(const LedgerContents& ledger) {
  try {
    const auto plan = blt_plan(ledger.header);
    if (!plan) return "";
    if (ledger.header.value("adjacency", "") != to_string(Adjacency::kZeroOut))
      return "noise_blt is accounted under zero-out adjacency alone";
    for (const char* other : {"noise_bands", "noise_chain", "sampling_groups"})
      if (ledger.header.contains(other)) return "noise_blt cannot be combined with " + std::string(other);
    const auto apart = planned_separation(ledger.header);
    if (apart && ledger.header.at("noise_blt").at("separation").get<int64_t>() > *apart)
      return "the steps of one unit must not be nearer than the separation of noise_blt, by which they are charged: "
             "units / expected_batch, rounded up, are " +
             std::to_string(*apart);
    (void)blt_rows_of(ledger, *plan);
    return "";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

// Groups and correlated noise are derived for one Poisson-sampled Gaussian, repeated, under zero-out adjacency, with
// bands or chains that reach no further than a group's steps are apart (docs/guarantee.md, "Correlated noise").
// Otherwise the rule that is broken.
std::string broken_rule_of_groups(const LedgerContents& ledger) {
  const int64_t groups = sampling_groups(ledger.header);
  const json bands = ledger.header.value("noise_bands", json::array());
  if (!bands.is_array() || static_cast<int64_t>(bands.size()) > groups)
    return "noise_bands must be at most as many as sampling_groups";
  if (const auto chain = ledger.header.find("noise_chain"); chain != ledger.header.end()) {
    const json steps = chain->is_object() ? chain->value("steps", json()) : json();
    if (!steps.is_number_unsigned() || steps.get<uint64_t>() > static_cast<uint64_t>(groups) || !bands.empty())
      return "noise_chain must have at most as many steps as there are sampling_groups, without noise_bands";
  }
  if (groups == 1 || ledger.entries.empty()) return "";
  const Event& first = ledger.entries.front().event;
  const bool derived = std::holds_alternative<PoissonGaussianEvent>(first) &&
                       ledger.header.value("adjacency", "") == to_string(Adjacency::kZeroOut) &&
                       std::all_of(ledger.entries.begin(), ledger.entries.end(),
                                   [&](const LedgerEntry& entry) { return entry.event == first; });
  return derived ? "" : "groups of units are accounted for one repeated Poisson-sampled Gaussian under zero-out alone";
}

}  // namespace

std::string broken_rule_of_correlation(const LedgerContents& ledger) {
  const std::string of_buffers = broken_rule_of_buffers(ledger);
  return of_buffers.empty() ? broken_rule_of_groups(ledger) : of_buffers;
}

std::optional<int64_t> planned_separation(const json& header) {
  const json units = header.value("units", json()), batch = header.value("expected_batch", json());
  if (!units.is_number() || !batch.is_number()) return std::nullopt;
  const double steps = units.get<double>() / batch.get<double>();
  if (!(steps > 0 && steps < 1e15)) return std::nullopt;
  return static_cast<int64_t>(std::ceil(steps - 1e-9));
}

std::string assumed_sampler(const Spent& spent) {
  std::string assumed;
  for (const std::string& sampler : spent.samplers) assumed += (assumed.empty() ? "" : ", ") + sampler;
  if (!assumed.empty()) return assumed;
  // Without sampling amplification nothing depends on how the batches were drawn.
  return spent.events.empty() ? "none (nothing was released)" : "none (every unit in every step)";
}

json facts_of_header(const json& header) {
  json facts = header.value("facts", json::object());
  if (!facts.is_object()) throw std::invalid_argument("the ledger's facts must be a JSON object, got " + facts.dump());
  return facts;
}

bool shows_unnoised(const json& facts) {
  const json released = facts.value("released_outputs", json());
  return released.is_object() && released.value("nonprivate_metrics", json()) == json(true);
}

std::vector<std::string> void_reasons(const json& header, const Spent& spent, const json& facts) {
  std::vector<std::string> reasons;
  const json stated = header.value("sampler", json());  // beside the one that facts name
  const bool executed =
      sampler_section(spent, facts.value("sampler", json::object())).at("executed_is_assumed") != json(false);
  const bool announced = spent.samplers.empty() || !stated.is_string() || stated == json(assumed_sampler(spent));
  if (!executed || !announced)
    reasons.push_back("the sampler that ran is not the " + assumed_sampler(spent) + " sampler that was accounted");
  if (!spent.groups_void.empty()) reasons.push_back(spent.groups_void);
  if (spent.noise_repeated)
    reasons.emplace_back(
        "two releases have key epoch, step and attempt in common, so the same noise may have been added "
        "to both and cancel out");
  return reasons;
}

}  // namespace ghostshard::accountant::report_parts
