#include "accountant/report.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "accountant/report/parts.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using namespace report_parts;

// What a reader looks for in each section and only the run can say. A section without such fields has "stated".
struct Section {
  const char* name;
  std::vector<const char*> fields;
};
const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"trust_model", {"model", "trusted_parties", "who_sees_what"}},
      {"unit_of_privacy", {"definition", "packing", "units_per_person"}},
      {"adjacency", {}},
      {"claim_boundary", {"covered", "not_covered"}},
      {"released_outputs", {"released", "nonprivate_metrics"}},
      {"tuning", {"included", "number_of_runs"}},
      {"guarantee", {}},
      {"privacy_curve", {}},
      {"rdp", {}},
      {"sampler", {"executed"}},
      {"population_and_steps", {"truncation_cap", "skipped_batches", "dropped_tail"}},
      {"mechanism", {"clipping_style", "normaliser", "microbatching"}},
      {"noise_source", {"generator", "key_custody", "dtype", "floating_point_caveat", "placement"}},
      {"provenance", {"code_commit", "config_hash", "checkpoint_lineage"}},
      {"empirical_audit", {"result"}},
      {"not_promised", {}},
  };
  return all;
}

std::string text_or(const json& object, const char* key, const std::string& otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

// Sentences say "any one text": if a run named its unit "one text", the word "one" is left to them.
std::string without_one(const std::string& unit) {
  const std::string one = "one ";
  return unit.size() > one.size() && unit.starts_with(one) ? unit.substr(one.size()) : unit;
}

json guarantee(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit,
               const std::vector<std::string>& reasons, bool unnoised_shown, const json& header) {
  json section = {{"applies", reasons.empty()},
                  {"epsilon", to_json(bound)},
                  {"delta", delta.value()},
                  {"adjacency", to_string(adjacency)},
                  {"unit", unit},
                  {"statement", statement(bound, delta, adjacency, unit, reasons, unnoised_shown)},
                  {"accountant", bound.accountant},
                  {"accountant_detail", bound.detail},
                  {"direction", bound.direction},
                  {"library_version", kLibraryVersion}};
  if (!reasons.empty()) {
    section["reasons"] = reasons;
    section["epsilon_if_it_applied"] = section["epsilon"];
    section["epsilon"] = {{"lower", nullptr}, {"estimate", nullptr}, {"upper", nullptr}};
  }
  section["delta_below_one_over_units"] = nullptr;
  if (header.contains("units") && header.at("units").is_number())
    section["delta_below_one_over_units"] = delta.value() * header.at("units").get<double>() < 1;
  return section;
}

// ---------------------------------------------------------------------------------------------------------------
// Facts

// The ledger's own facts and those of the caller. They must agree wherever both speak: a fact that was written before
// the first release cannot be taken back afterwards.
json all_facts(const json& header, const json& given) {
  if (!given.is_object())
    throw std::invalid_argument(std::string("facts must be a JSON object, got ") + given.type_name());
  json facts = facts_of_header(header);
  const auto contradiction = [](const std::string& name) {
    return std::invalid_argument("facts must not contradict the ledger's header, they do in " + name);
  };
  for (const auto& [name, stated] : given.items()) {
    if (!facts.contains(name)) {
      facts[name] = stated;
    } else if (facts.at(name).is_object() && stated.is_object()) {
      for (const auto& [field, value] : stated.items()) {
        if (facts.at(name).contains(field) && facts.at(name).at(field) != value)
          throw contradiction(name + '.' + field);
        facts[name][field] = value;
      }
    } else if (facts.at(name) != stated) {
      throw contradiction(name);
    }
  }
  return facts;
}

void merge_facts(json& report, const json& facts) {
  for (const auto& [name, stated] : facts.items()) {
    if (!is_section(name)) {
      report["further_facts"][name] = stated;
      continue;
    }
    if (name == "guarantee") throw std::invalid_argument("facts must not state the guarantee, it is computed");
    json& section = report[name];
    if (!stated.is_object()) {
      section["stated"] = stated;
      continue;
    }
    for (const auto& [field, value] : stated.items()) {
      if (section.contains(field))
        throw std::invalid_argument("facts must not state " + name + '.' + field + ", it is computed");
      section[field] = value;
    }
  }
  for (const Section& section : sections()) {
    json& filled = report[section.name];
    if (filled.contains("stated")) continue;  // one text for the whole section
    for (const char* field : section.fields)
      if (!filled.contains(field)) filled[field] = kNotStated;
  }
}

}  // namespace

namespace report_parts {

bool is_section(const std::string& name) {
  return std::any_of(sections().begin(), sections().end(),
                     [&](const Section& section) { return section.name == name; });
}

json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json to_json(const EpsilonBound& bound) {
  return {{"lower", finite_or_null(bound.lower)},
          {"estimate", finite_or_null(bound.estimate)},
          {"upper", finite_or_null(bound.upper)}};
}

}  // namespace report_parts

json build_report(const LedgerContents& ledger, Delta delta, const json& given_facts, const std::string& accountant) {
  const json facts = all_facts(ledger.header, given_facts);
  const Adjacency adjacency = adjacency_from_string(text_or(ledger.header, "adjacency", ""));
  const std::string unit = without_one(text_or(ledger.header, "unit_of_privacy", "unit"));
  const Spent spent = spent_by(ledger);
  const auto engine = account(spent, accountant, adjacency);
  const EpsilonBound bound = engine->epsilon(delta);
  const json sampler = sampler_section(spent, facts.value("sampler", json::object()));

  std::vector<std::string> reasons;
  if (!std::isfinite(bound.upper)) reasons.push_back("the accountant found no finite epsilon");
  for (std::string& reason : void_reasons(ledger.header, spent, facts)) reasons.push_back(std::move(reason));
  const bool unnoised_shown = shows_unnoised(facts);
  const json unit_facts = facts.value("unit_of_privacy", json::object());
  const json units_per_person = unit_facts.is_object() ? unit_facts.value("units_per_person", json()) : json();

  json report = {{"schema", kReportSchema}};
  report["trust_model"] = json::object();
  report["unit_of_privacy"] = {{"unit", text_or(ledger.header, "unit_of_privacy", kNotStated)}};
  report["adjacency"] = adjacency_section(adjacency);
  report["claim_boundary"] = {{"accounted", "the releases in the ledger and nothing else"}};
  report["released_outputs"] = {
      {"accounted", "all intermediate releases: showing every checkpoint costs no more than showing the last"}};
  report["tuning"] = {{"accounted", "this run only, with no charge for other runs on the same data"}};
  report["guarantee"] = guarantee(bound, delta, adjacency, unit, reasons, unnoised_shown, ledger.header);
  report["privacy_curve"] = privacy_curve(*engine, delta, bound);
  report["spending"] = spending(spent, accountant, adjacency, delta, bound);
  report["accountants"] = accountants(spent, adjacency, delta, bound);
  report["rdp"] = report.at("accountants").at("rdp");
  report["rdp"].erase("curve");
  report["sampler"] = sampler;
  report["population_and_steps"] = population_and_steps(ledger, spent);
  report["mechanism"] = mechanism(ledger, spent);
  report["noise_source"] = json::object();
  report["provenance"] = provenance(ledger);
  report["empirical_audit"] = {{"meaning", "a measured lower bound on epsilon, separate from the guarantee"}};
  report["not_promised"] = {{"list", not_promised(unit, units_per_person == json(1), unnoised_shown)}};
  report["assumptions"] = assumptions(ledger, spent);
  report["in_plain_words"] = reasons.empty() ? plain_words(bound, delta, adjacency, unit,
                                                           report.at("privacy_curve").at("membership_test_bounds"))
                                             : json::array();
  if (units_per_person.is_number_integer() && units_per_person.get<int64_t>() > 1 && reasons.empty())
    report["unit_of_privacy"]["person"] = group_guarantee(report.at("privacy_curve"), units_per_person, delta);
  merge_facts(report, facts);
  return report;
}

}  // namespace ghostshard::accountant
