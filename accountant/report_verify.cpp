#include "accountant/report_verify.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "accountant/report.h"
#include "accountant/report/parts.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using Verdict = Finding::Verdict;

constexpr double kTolerance = 1e-9;

std::string brief(const json& value) {
  const std::string text = value.dump();
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

bool same_value(const json& a, const json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  const double x = a.get<double>(), y = b.get<double>();
  return std::abs(x - y) <= kTolerance * std::max(std::abs(x), std::abs(y));
}

struct Comparison {
  int64_t equal = 0;
  std::vector<Finding> differences;
};

void compare(const std::string& place, const json& reported, const json& recomputed, Comparison& result) {
  const auto differs = [&](const std::string& text) {
    result.differences.push_back({Verdict::kDiffers, place + text});
  };
  if (reported.is_object() && recomputed.is_object()) {
    for (const auto& [key, value] : recomputed.items()) {
      if (reported.contains(key))
        compare(place + '.' + key, reported.at(key), value, result);
      else
        differs('.' + key + ": not in the report, the ledger gives " + brief(value));
    }
    for (const auto& [key, value] : reported.items())
      if (!recomputed.contains(key))
        differs('.' + key + ": the ledger gives no such value, the report says " + brief(value));
    return;
  }
  if (reported.is_array() && recomputed.is_array() && reported.size() == recomputed.size()) {
    for (size_t i = 0; i < reported.size(); ++i)
      compare(place + '[' + std::to_string(i) + ']', reported[i], recomputed[i], result);
    return;
  }
  if (same_value(reported, recomputed))
    ++result.equal;
  else
    differs(": the report says " + brief(reported) + ", the ledger gives " + brief(recomputed));
}

// How the engine found a number (meshes, nodes) and which library did are no part of the claim.
void drop_manner(json& report) {
  if (report.contains("guarantee") && report.at("guarantee").is_object()) {
    report["guarantee"].erase("accountant_detail");
    report["guarantee"].erase("library_version");
  }
  if (report.contains("provenance") && report.at("provenance").is_object())
    report["provenance"].erase("library_version_of_report");
  if (report.contains("rdp") && report.at("rdp").is_object()) report["rdp"].erase("detail");
  if (report.contains("accountants") && report.at("accountants").is_object())
    for (auto& [name, section] : report["accountants"].items())
      if (section.is_object()) section.erase("detail");
}

// What a report holds beyond the ledger: fields which the ledger alone leaves open.
json facts_of(const json& report, const json& from_ledger) {
  json facts = json::object();
  for (const auto& [name, section] : from_ledger.items()) {
    if (name == "guarantee" || name == "further_facts" || !section.is_object() || !report.contains(name) ||
        !report.at(name).is_object() || !report_parts::is_section(name))
      continue;
    for (const auto& [field, value] : report.at(name).items()) {
      if (section.contains(field) && section.at(field) != json(report_parts::kNotStated)) continue;
      if (value == json(report_parts::kNotStated) || (name == "unit_of_privacy" && field == "person")) continue;
      facts[name][field] = value;
    }
    // One text for a whole section was given as such.
    if (facts.contains(name) && facts.at(name).contains("stated")) facts[name] = json(facts.at(name).at("stated"));
  }
  if (report.contains("further_facts") && report.at("further_facts").is_object())
    for (const auto& [name, value] : report.at("further_facts").items())
      if (!from_ledger.contains("further_facts") || !from_ledger.at("further_facts").contains(name))
        facts[name] = value;
  return facts;
}

// A report of an earlier version says the same in another sentence: it is taken for the present one.
void renew_wording(json& reported, const json& recomputed) {
  const json& guarantee = recomputed.at("guarantee");
  const json& epsilon = guarantee.at("epsilon").at("upper");
  if (!epsilon.is_number() || recomputed.at("in_plain_words").empty() || !reported.contains("in_plain_words")) return;
  json& words = reported["in_plain_words"];
  if (!words.is_array() || words.empty()) return;
  const std::string former = report_parts::former_first_words(
      epsilon, Delta(guarantee.at("delta").get<double>()),
      adjacency_from_string(guarantee.at("adjacency").get<std::string>()), guarantee.at("unit").get<std::string>());
  if (words.front() == json(former)) words.front() = recomputed.at("in_plain_words").front();
}

// The sequence number of the line with this hash, 0 for the header's.
std::optional<int64_t> line_of(const LedgerContents& ledger, const std::string& hash) {
  if (hash == ledger.header_hash) return 0;
  for (const LedgerEntry& entry : ledger.entries)
    if (entry.hash == hash) return entry.sequence;
  for (const LedgerEpoch& epoch : ledger.epochs)
    if (epoch.hash == hash) return epoch.sequence;
  return std::nullopt;
}

template <typename Read>
auto field(const json& report, const char* pointer, Read read) {
  const json::json_pointer at(pointer);
  try {
    return read(report.at(at));
  } catch (const json::exception&) {
    throw std::invalid_argument(std::string("the report must have ") + pointer + ", found none that can be read");
  }
}

}  // namespace

std::vector<Finding> verify_head(const LedgerContents& ledger, const std::optional<std::string>& head) {
  std::vector<Finding> findings;
  findings.push_back({Verdict::kAgrees, "hash chain of the header and " + std::to_string(ledger.entries.size()) +
                                            " releases, head " + ledger.head});
  if (ledger.dropped_partial_line)
    findings.push_back({Verdict::kCannotTell,
                        "the last line is cut short, as by a crash: its release had not been permitted yet and is not "
                        "counted"});
  if (!head) {
    findings.push_back(
        {Verdict::kCannotTell,
         "whether the last line was changed, lines are missing at the end or were written anew: a chain alone shows "
         "none of it, and no head kept elsewhere was given"});
    return findings;
  }
  if (*head == ledger.head) {
    findings.push_back({Verdict::kAgrees, "the head kept elsewhere is that of the ledger"});
    return findings;
  }
  if (const auto line = line_of(ledger, *head)) {
    const auto after = [&](const auto& lines) {
      return std::count_if(lines.begin(), lines.end(), [&](const auto& one) { return one.sequence > *line; });
    };
    const auto releases = after(ledger.entries), epochs = after(ledger.epochs);
    findings.push_back({Verdict::kDiffers, "the head kept elsewhere is that after release " +
                                               std::to_string(ledger.entries.size() - static_cast<size_t>(releases)) +
                                               ": " + std::to_string(releases) + " releases came later" +
                                               (epochs > 0 ? ", and " + std::to_string(epochs) + " new key(s)" : "")});
  } else {
    findings.push_back(
        {Verdict::kDiffers, "the head kept elsewhere (" + *head +
                                ") is that of no line of this ledger: lines are missing or it is another "
                                "ledger"});
  }
  return findings;
}

std::vector<Finding> verify_plan(const LedgerContents& ledger) {
  const report_parts::Spent spent = report_parts::spent_by(ledger);
  std::vector<Finding> findings;
  for (const json& assumption : report_parts::assumptions(ledger, spent))
    if (assumption.value("holds", json()) == json(false))
      findings.push_back(
          {Verdict::kDiffers, "the ledger's lines break a rule: " + assumption.at("assumption").get<std::string>()});
  auto reasons = report_parts::void_reasons(ledger.header, spent, report_parts::facts_of_header(ledger.header));
  if (spent.noise_repeated) reasons.pop_back();  // the last one; it is among the rules above
  for (const std::string& reason : reasons) findings.push_back({Verdict::kDiffers, reason});
  return findings;
}

std::vector<Finding> verify_report(const LedgerContents& ledger, const json& report) {
  if (!report.is_object() || report.value("schema", json()) != json(kReportSchema))
    throw std::invalid_argument(std::string("a report must have the schema ") + kReportSchema);
  const Delta delta(field(report, "/guarantee/delta", [](const json& v) { return v.get<double>(); }));
  const auto accountant = field(report, "/guarantee/accountant", [](const json& v) { return v.get<std::string>(); });

  json reported = report;
  json recomputed = build_report(ledger, delta, json::object(), accountant);
  const json stated = facts_of(reported, recomputed);
  if (!stated.empty()) recomputed = build_report(ledger, delta, stated, accountant);
  renew_wording(reported, recomputed);
  // The line cut short may have been repaired since: whether there was one is no claim.
  for (json* side : {&reported, &recomputed}) {
    drop_manner(*side);
    if (side->contains("provenance") && side->at("provenance").is_object())
      (*side)["provenance"].erase("ledger_partial_line_dropped");
  }

  std::vector<Finding> findings;
  for (const auto& [name, section] : recomputed.items()) {
    Comparison result;
    if (reported.contains(name))
      compare(name, reported.at(name), section, result);
    else
      result.differences.push_back({Verdict::kDiffers, name + ": the report has no such section"});
    if (result.differences.empty())
      findings.push_back({Verdict::kAgrees,
                          name + " (" + std::to_string(result.equal) + (result.equal == 1 ? " value)" : " values)")});
    else
      findings.insert(findings.end(), result.differences.begin(), result.differences.end());
  }
  for (const auto& [name, section] : reported.items())
    if (!recomputed.contains(name)) findings.push_back({Verdict::kDiffers, name + ": no section of a report"});
  for (const auto& [name, fields] : stated.items()) {
    std::string names;
    if (fields.is_object() && report_parts::is_section(name))
      for (const auto& [key, value] : fields.items()) names += (names.empty() ? ": " : ", ") + key;
    findings.push_back({Verdict::kCannotTell, name + names + " (stated after the run, not in the ledger)"});
  }
  return findings;
}

}  // namespace ghostshard::accountant
