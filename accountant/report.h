// The privacy report: what is guaranteed, for what, under which assumptions, built from the ledger.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"

namespace ghostshard::accountant {

inline constexpr const char* kReportSchema = "ghostshard.privacy_report/1";
inline constexpr const char* kDefaultAccountant = "contour";

// Sections, numbered as the checklist of "How to DP-fy ML" (arXiv:2303.00654) and NIST SP 800-226 has them:
//    1 trust_model             2 unit_of_privacy      3 adjacency             4 claim_boundary
//    5 released_outputs        6 tuning               7 guarantee             8 privacy_curve
//    9 rdp                    10 sampler             11 population_and_steps 12 mechanism
//   13 noise_source           14 provenance          15 empirical_audit      16 not_promised
// and beside them schema, assumptions (each with "checked" and, where code checked it, "holds"), in_plain_words,
// further_facts, spending (epsilon over the releases) and accountants (the same run under every engine).
//
//   guarantee: {applies, epsilon: {lower, estimate, upper}, delta, adjacency, unit, statement, accountant,
//     accountant_detail, direction, library_version, delta_below_one_over_units}. `upper` is the claim. It is null
//     where there is none: no finite bound, or something is known to have run that was not accounted. Then "applies"
//     is false, "reasons" says why, and "epsilon_if_it_applied" keeps the numbers.
//   provenance.resumptions_in_ledger: {seen, at: [{at_line, step, new_key, steps_charged_again}], meaning}, from the
//     ledger alone, so that a report rebuilt by others tells of them as the run's own does.
//   privacy_curve: {points: [{delta, epsilon}], membership_test_bounds: [{false_positive_rate,
//     true_positive_rate_at_most}], gaussian_dp: {mu, holds_for_delta_from, meaning}}.
//
// facts: what the run knows and the ledger's entries do not, an object whose keys are section names; those of the
// ledger's header ("facts") come first and cannot be contradicted. An object is merged into its section, anything else
// becomes the section's "stated"; a name that is no section goes to further_facts. Facts cannot replace what is
// computed here (std::invalid_argument). Every section appears; what is neither in the ledger nor in facts is "not
// stated by the run". Read from facts beyond showing it:
//   sampler.executed
//       "poisson", "fixed-size", …, or what it was: anything else than the charged events assume voids the guarantee
//   released_outputs.nonprivate_metrics
//       true: un-noised numbers were shown; statement and not_promised then say so
//   unit_of_privacy.units_per_person
//       1: the warning about persons with several units is left out; k > 1: a person's epsilon is bounded as well
//
// epsilon is recomputed from the ledger's entries, every attempt charged. Throws std::invalid_argument for facts that
// are no object, an unknown accountant, events that it cannot bound, or a header without adjacency.
nlohmann::json build_report(const LedgerContents& ledger, Delta delta, const nlohmann::json& facts,
                            const std::string& accountant = kDefaultAccountant);

// A dozen lines for a terminal: the guarantee in one plain sentence, what it covers, what it does not.
std::string summarize_report(const nlohmann::json& report);

// The report as one HTML page that loads nothing and runs nothing: for a browser, a phone, a printer. Every text of the
// report is escaped. Throws std::invalid_argument where the JSON is no report of this schema.
std::string render_report_html(const nlohmann::json& report);

// Atomic write (partial file beside it, fsync, rename). Throws std::runtime_error with path and reason,
// std::invalid_argument where the JSON holds a NaN or an infinity.
void write_json_file(const std::filesystem::path& path, const nlohmann::json& json);
void write_text_file(const std::filesystem::path& path, const std::string& text);

// privacy_report.json and privacy_report.html in an existing folder, each written atomically.
void write_report(const std::filesystem::path& folder, const nlohmann::json& report);

}  // namespace ghostshard::accountant
