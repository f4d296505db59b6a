// The privacy report, built from the ledger: the guarantee, its scope and its assumptions.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"

namespace ghostshard::accountant {

inline constexpr const char* kReportSchema = "ghostshard.privacy_report/1";
inline constexpr const char* kDefaultAccountant = "contour";

// The sections, with the numbers of the checklist in "How to DP-fy ML" (arXiv:2303.00654) and NIST SP 800-226:
//    1 trust_model             2 unit_of_privacy      3 adjacency             4 claim_boundary
//    5 released_outputs        6 tuning               7 guarantee             8 privacy_curve
//    9 rdp                    10 sampler             11 population_and_steps 12 mechanism
//   13 noise_source           14 provenance          15 empirical_audit      16 not_promised
// Beside them the report has schema, assumptions (each with "checked" and, if code checked it, "holds"),
// in_plain_words, further_facts, spending (epsilon over the releases) and accountants (the run under every engine).
//
//   guarantee: {applies, epsilon: {lower, estimate, upper}, delta, adjacency, unit, statement, accountant,
//     accountant_detail, direction, library_version, delta_below_one_over_units}. `upper` is the claim. It is null if
//     there is no claim: the bound is not finite, or something is known to have run that was not accounted. Then
//     "applies" is false, "reasons" says why, and "epsilon_if_it_applied" keeps the numbers.
//   provenance.resumptions_in_ledger: {seen, at: [{at_line, step, new_key, steps_charged_again}], meaning}, from the
//     ledger alone, so that a report rebuilt by others lists the same resumptions as the run's own.
//   privacy_curve: {points: [{delta, epsilon}], membership_test_bounds: [{false_positive_rate,
//     true_positive_rate_at_most}], gaussian_dp: {mu, holds_for_delta_from, meaning}}.
//
// facts: an object of statements that the ledger's entries do not hold; its keys are section names. The facts in the
// ledger's header come first and cannot be contradicted. An object is merged into its section; anything else becomes
// the section's "stated"; a key that is no section goes to further_facts. Facts that would replace a computed value are
// refused (std::invalid_argument). Every section appears; a value that is neither in the ledger nor in facts is "not
// stated by the run". All facts are shown, and these are read as well:
//   sampler.executed
//       "poisson", "fixed-size", … or another name: if it is not the sampling that the charged events assume, the
//       guarantee is void
//   sampler.of_the_program (of the ledger's header)
//       a sentence about the program around the mechanism that no program can check: one of the assumptions
//   released_outputs.nonprivate_metrics
//       true: un-noised numbers were shown; statement and not_promised then say so
//   unit_of_privacy.units_per_person
//       1: the warning about persons with several units is left out; k > 1: a person's epsilon is bounded as well
//
// epsilon is recomputed from the ledger's entries, with every attempt charged. Throws std::invalid_argument for facts
// that are no object, an unknown accountant, events that it cannot bound, or a header without adjacency.
nlohmann::json build_report(const LedgerContents& ledger, Delta delta, const nlohmann::json& facts,
                            const std::string& accountant = kDefaultAccountant);

// A dozen lines for a terminal: the guarantee in one plain sentence, its scope and its limits.
std::string summarize_report(const nlohmann::json& report);

// The report as one HTML page that loads nothing and runs nothing, for a browser, a phone or a printer. Every text of
// the report is escaped. Throws std::invalid_argument if the JSON is no report of this schema.
std::string render_report_html(const nlohmann::json& report);

// Whether a folder, a device, a pipe or a socket is at `path`. A move would put a file in a device's place, for all who
// use it, if root asks for that.
bool holds_no_file(const std::filesystem::path& path);

// Writes atomically: a partial file beside it, fsync, rename; of a link that leads somewhere, there. Throws
// std::runtime_error with path and reason, and std::invalid_argument if the path holds no file or the JSON a NaN or an
// infinity.
void write_json_file(const std::filesystem::path& path, const nlohmann::json& json);
void write_text_file(const std::filesystem::path& path, const std::string& text);

// Writes privacy_report.json and privacy_report.html into an existing folder, each atomically.
void write_report(const std::filesystem::path& folder, const nlohmann::json& report);

}  // namespace ghostshard::accountant
