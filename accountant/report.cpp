// Wording matters here as much as arithmetic: a sentence in the report may say less than what is true, never
// more. Numbers in sentences are rounded up.
#include "accountant/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include "accountant/accountant.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;

constexpr const char* kNotStated = "not stated by the run";

// What a reader looks for in each section and only the run can say. A section without such fields has
// "stated".
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

// JSON knows no infinity; null where there is no bound.
json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json to_json(const EpsilonBound& bound) {
  return {{"lower", finite_or_null(bound.lower)},
          {"estimate", finite_or_null(bound.estimate)},
          {"upper", finite_or_null(bound.upper)}};
}

std::string rounded_up(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", std::ceil(value * 1e4) / 1e4);
  return text;
}

std::string shortest(double value) { return json(value).dump(); }

std::string text_or(const json& object, const char* key, const std::string& otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

// ---------------------------------------------------------------------------------------------------------------
// What the ledger says

struct Spent {
  std::vector<std::pair<Event, int64_t>> events;  // distinct, in order of first appearance
  std::set<int64_t> steps;
  std::map<int64_t, int64_t> releases_per_attempt;
  bool sampled = false;
};

Spent spent_by(const LedgerContents& ledger) {
  Spent spent;
  for (const LedgerEntry& entry : ledger.entries) {
    const auto same = std::find_if(spent.events.begin(), spent.events.end(),
                                   [&](const auto& known) { return known.first == entry.event; });
    if (same != spent.events.end())
      ++same->second;
    else
      spent.events.emplace_back(entry.event, 1);
    spent.steps.insert(entry.step);
    ++spent.releases_per_attempt[entry.attempt];
    spent.sampled = spent.sampled || std::holds_alternative<PoissonGaussianEvent>(entry.event);
  }
  return spent;
}

std::unique_ptr<Accountant> account(const Spent& spent, const std::string& name, Adjacency adjacency) {
  auto engine = make_accountant(name, adjacency);
  for (const auto& [event, count] : spent.events) engine->compose(event, count);
  return engine;
}

// ---------------------------------------------------------------------------------------------------------------
// Sections

// Epsilon at several deltas, and what they bound together: the true positive rate of any test for one unit's
// membership, at most e^eps·FPR + delta and at most 1 - e^-eps·(1 - FPR - delta), for every point of the
// curve.
json privacy_curve(const Accountant& engine, Delta delta) {
  std::set<double> deltas = {1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, delta.value()};
  json points = json::array();
  std::vector<std::pair<double, double>> curve;
  for (const double at : deltas) {
    const EpsilonBound bound = engine.epsilon(Delta(at));
    points.push_back({{"delta", at}, {"epsilon", to_json(bound)}});
    curve.emplace_back(bound.upper, at);
  }
  json rates = json::array();
  for (const double false_positives : {0.1, 0.01, 0.001}) {
    double most = 1;
    for (const auto& [epsilon, at] : curve) {
      most = std::min(most, std::exp(epsilon) * false_positives + at);
      most = std::min(most, 1 - std::exp(-epsilon) * (1 - false_positives - at));
    }
    rates.push_back({{"false_positive_rate", false_positives}, {"true_positive_rate_at_most", most}});
  }
  return {{"points", points}, {"membership_test_bounds", rates}};
}

json event_table(const Spent& spent) {
  json table = json::array();
  for (const auto& [event, count] : spent.events) table.push_back({{"event", to_json(event)}, {"releases", count}});
  return table;
}

json population_and_steps(const LedgerContents& ledger, const Spent& spent) {
  json section = {{"steps_executed", spent.steps.size()}, {"releases_charged", ledger.entries.size()}};
  for (const auto& [in_header, shown] : {std::pair{"units", "units"},
                                         {"expected_batch", "expected_batch"},
                                         {"sampling_rate", "sampling_rate_planned"},
                                         {"planned_steps", "steps_planned"}})
    section[shown] = ledger.header.contains(in_header) ? ledger.header.at(in_header) : json(kNotStated);
  std::set<double> rates;
  for (const auto& [event, count] : spent.events)
    if (const auto* sampled = std::get_if<PoissonGaussianEvent>(&event)) rates.insert(sampled->q.value());
  section["sampling_rates_charged"] = rates;
  json attempts = json::array();
  int64_t redone = 0;
  for (const auto& [attempt, releases] : spent.releases_per_attempt) {
    attempts.push_back({{"attempt", attempt}, {"releases", releases}});
    if (attempt > 0) redone += releases;
  }
  section["attempts"] = attempts;
  section["releases_of_later_attempts"] = redone;
  return section;
}

// Which key made the noise of which releases; more than one where a resumed run had lost its key.
json key_epochs(const LedgerContents& ledger) {
  json epochs = json::array({{{"epoch", 0}, {"run_id", text_or(ledger.header, "run_id", kNotStated)}}});
  for (const LedgerEpoch& epoch : ledger.epochs)
    epochs.push_back(
        {{"epoch", epoch.number}, {"run_id", epoch.run_id}, {"key", epoch.key}, {"resumed_at_step", epoch.step}});
  std::vector<int64_t> releases(epochs.size(), 0);
  for (const LedgerEntry& entry : ledger.entries) {
    const auto later = std::find_if(ledger.epochs.begin(), ledger.epochs.end(),
                                    [&](const LedgerEpoch& epoch) { return epoch.sequence > entry.sequence; });
    ++releases[static_cast<size_t>(later - ledger.epochs.begin())];
  }
  for (size_t i = 0; i < epochs.size(); ++i) epochs[i]["releases"] = releases[i];
  return epochs;
}

json mechanism(const LedgerContents& ledger, const Spent& spent) {
  std::set<double> sigmas;
  for (const auto& [event, count] : spent.events)
    sigmas.insert(std::visit([](const auto& any) { return any.sigma.value(); }, event));
  const auto from_header = [&](const char* key) {
    return ledger.header.contains(key) ? ledger.header.at(key) : json(kNotStated);
  };
  return {{"events", event_table(spent)},
          {"noise_multipliers_charged", sigmas},
          {"noise_multiplier_planned", from_header("noise_multiplier")},
          {"clip_norm", from_header("clip_norm")}};
}

json sampler_section(const Spent& spent, const json& facts) {
  const std::string assumed =
      spent.sampled ? "poisson"
                    : (spent.events.empty() ? "none (nothing was released)" : "none (every unit in every step)");
  json section = {{"assumed", assumed}};
  const json stated = facts.is_object() ? facts.value("executed", json()) : facts;
  // Without sampling amplification nothing depends on how the batches were drawn.
  if (!spent.sampled)
    section["executed_is_assumed"] = true;
  else if (stated.is_string())
    section["executed_is_assumed"] = stated.get<std::string>() == assumed;
  else
    section["executed_is_assumed"] = nullptr;
  return section;
}

json adjacency_section(Adjacency adjacency) {
  const bool zero_out = adjacency == Adjacency::kZeroOut;
  return {{"relation", to_string(adjacency)},
          {"meaning", zero_out ? "two data sets are neighbours if they differ in one unit whose record is replaced by "
                                 "one that contributes nothing"
                               : "two data sets are neighbours if one is the other with one unit added or removed"},
          {"number_of_units_is_public", zero_out}};
}

// Things every reader may take for granted and must not.
json not_promised(const std::string& unit, bool per_person, bool unnoised_shown) {
  json list = json::array();
  if (unnoised_shown)
    list.push_back("Anything towards whoever saw the numbers that were computed from private data without noise.");
  if (!per_person)
    list.push_back("Protection of a person who contributed more than one " + unit +
                   ": their protection is weaker, and weaker with each further " + unit + '.');
  list.push_back("Secrecy of what many units have in common: a fact found in many of them may be learnt.");
  list.push_back("Protection against what can be inferred without this data, e.g. from public or pre-training data.");
  list.push_back(
      "Cover for accesses to the data other than the releases in the ledger: preprocessing, tokenizers, "
      "validation, early stopping, choice among runs, unless claim_boundary and tuning say so.");
  list.push_back(
      "Protection against whoever sees the training machines, their memory or their links, or knows the "
      "noise key.");
  list.push_back("Protection of the training data where it is stored, or against its other uses.");
  list.push_back("Accuracy, fairness or truthfulness of the model.");
  return list;
}

// ---------------------------------------------------------------------------------------------------------------
// Assumptions

json unchecked(const std::string& text) { return {{"assumption", text}, {"checked", false}}; }
json checked(const std::string& text, bool holds) {
  return {{"assumption", text}, {"checked", true}, {"holds", holds}};
}

json assumptions(const LedgerContents& ledger, const Spent& spent) {
  json list = json::array();
  list.push_back(checked("The ledger's hash chain, schema and sequence numbers are intact.", true));
  const json& header = ledger.header;
  // A run that sampled more, or added less noise, than its header announced is accounted correctly, by its
  // entries; the announcement was then not what happened, and the reader should know.
  if (header.contains("units") && header.contains("expected_batch") && header.at("units").is_number() &&
      header.at("expected_batch").is_number()) {
    const double rate = header.at("expected_batch").get<double>() / header.at("units").get<double>();
    bool same = true;
    for (const auto& [event, count] : spent.events)
      if (const auto* sampled = std::get_if<PoissonGaussianEvent>(&event))
        same = same && std::abs(sampled->q.value() - rate) <= 1e-12 * rate;  // one division, written out exactly
    list.push_back(checked("Every charged sampling rate is expected_batch / units.", same));
  }
  if (header.contains("noise_multiplier") && header.at("noise_multiplier").is_number()) {
    const double planned = header.at("noise_multiplier").get<double>();
    bool same = true;
    for (const auto& [event, count] : spent.events)
      same = same && std::visit([](const auto& any) { return any.sigma.value(); }, event) == planned;
    list.push_back(checked("Every charged noise multiplier is the planned one.", same));
  }
  if (header.contains("planned_steps") && header.at("planned_steps").is_number_integer())
    list.push_back(checked("No more steps were executed than planned.",
                           static_cast<int64_t>(spent.steps.size()) <= header.at("planned_steps").get<int64_t>()));
  list.push_back(
      unchecked("The ledger is complete: every release was written to it, and no line was taken off its "
                "end since. Compare provenance.ledger_head with a copy kept elsewhere."));
  if (spent.sampled)
    list.push_back(
        unchecked("Each unit was included in each step independently, with exactly the charged "
                  "probability, and which units were included stays secret."));
  list.push_back(
      unchecked("One unit's contribution to each sum had at most the stated L2 norm, cross terms of "
                "shared parameters and rounding included."));
  list.push_back(
      unchecked("The noise of each release is Gaussian with the charged multiple of that norm, "
                "independent of the data and of all other noise, and unknown to who sees the releases."));
  list.push_back(unchecked("Noise in floating-point arithmetic behaves like real-valued noise."));
  list.push_back(
      unchecked("Clip norm, noise multiplier, expected batch and number of units were fixed without "
                "looking at the data."));
  list.push_back(unchecked("Each record belongs to one unit, and units are what unit_of_privacy says they are."));
  list.push_back(unchecked("Nothing but the releases and what was computed from them left the trusted machines."));
  return list;
}

// ---------------------------------------------------------------------------------------------------------------
// The guarantee

std::string statement(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit,
                      const std::vector<std::string>& reasons, bool unnoised_shown) {
  if (!reasons.empty()) {
    std::string text = "No differential privacy guarantee is claimed: ";
    for (size_t i = 0; i < reasons.size(); ++i) text += (i > 0 ? "; " : "") + reasons[i];
    return text + '.';
  }
  const std::string change = adjacency == Adjacency::kZeroOut
                                 ? "replacing the record of any one " + unit + " by one that contributes nothing"
                                 : "adding or removing any one " + unit;
  return "Under the assumptions listed in this report, " + change +
         " changes the probability of any set of outcomes of the recorded releases, and of anything computed from "
         "them alone, by at most a factor e^epsilon plus delta, with epsilon = " +
         rounded_up(bound.upper) + " and delta = " + shortest(delta.value()) + ". It covers one " + unit +
         " at a time and these releases only; not_promised lists what is not covered." +
         (unnoised_shown ? " Numbers computed from private data without noise were shown as well: whoever saw them "
                           "has no guarantee."
                         : "");
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

void merge_facts(json& report, const json& facts) {
  for (const auto& [name, stated] : facts.items()) {
    const auto is_named = [&, &key = name](const Section& section) { return key == section.name; };
    if (std::none_of(sections().begin(), sections().end(), is_named)) {
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

json build_report(const LedgerContents& ledger, Delta delta, const json& facts, const std::string& accountant) {
  if (!facts.is_object()) throw std::invalid_argument("facts must be a JSON object, got " + facts.dump());
  const Adjacency adjacency = adjacency_from_string(text_or(ledger.header, "adjacency", ""));
  const std::string unit = text_or(ledger.header, "unit_of_privacy", "unit");
  const Spent spent = spent_by(ledger);
  const auto engine = account(spent, accountant, adjacency);
  const EpsilonBound bound = engine->epsilon(delta);
  const json sampler = sampler_section(spent, facts.value("sampler", json::object()));
  const json released = facts.value("released_outputs", json::object());

  std::vector<std::string> reasons;
  if (!std::isfinite(bound.upper)) reasons.push_back("the accountant found no finite epsilon");
  if (sampler.at("executed_is_assumed") == json(false))
    reasons.push_back("the sampler that ran is not the Poisson sampler that was accounted");
  const bool unnoised_shown = released.is_object() && released.value("nonprivate_metrics", json()) == json(true);

  json report = {{"schema", kReportSchema}};
  report["trust_model"] = json::object();
  report["unit_of_privacy"] = {{"unit", text_or(ledger.header, "unit_of_privacy", kNotStated)}};
  report["adjacency"] = adjacency_section(adjacency);
  report["claim_boundary"] = {{"accounted", "the releases in the ledger and nothing else"}};
  report["released_outputs"] = {
      {"accounted", "all intermediate releases: showing every checkpoint costs no more than showing the last"}};
  report["tuning"] = {{"accounted", "this run only, with no charge for other runs on the same data"}};
  report["guarantee"] = guarantee(bound, delta, adjacency, unit, reasons, unnoised_shown, ledger.header);
  report["privacy_curve"] = privacy_curve(*engine, delta);
  report["rdp"] = {{"delta", delta.value()}, {"epsilon", nullptr}};
  const EpsilonBound rdp = account(spent, "rdp", adjacency)->epsilon(delta);
  report["rdp"]["epsilon"] = to_json(rdp);
  report["rdp"]["detail"] = rdp.detail;
  report["sampler"] = sampler;
  report["population_and_steps"] = population_and_steps(ledger, spent);
  report["mechanism"] = mechanism(ledger, spent);
  report["noise_source"] = json::object();
  report["provenance"] = {{"run_id", text_or(ledger.header, "run_id", kNotStated)},
                          {"ledger_schema", kLedgerSchema},
                          {"ledger_head", ledger.head},
                          {"ledger_header_hash", ledger.header_hash},
                          {"ledger_header", ledger.header},
                          {"ledger_entries", ledger.entries.size()},
                          {"key_epochs", key_epochs(ledger)},
                          {"ledger_partial_line_dropped", ledger.dropped_partial_line},
                          {"library_version_of_run", text_or(ledger.header, "library_version", kNotStated)},
                          {"library_version_of_report", kLibraryVersion}};
  report["empirical_audit"] = {{"meaning", "a measured lower bound on epsilon, separate from the guarantee"}};
  const json unit_facts = facts.value("unit_of_privacy", json::object());
  const bool per_person = unit_facts.is_object() && unit_facts.value("units_per_person", json()) == json(1);
  report["not_promised"] = {{"list", not_promised(unit, per_person, unnoised_shown)}};
  report["assumptions"] = assumptions(ledger, spent);
  merge_facts(report, facts);
  return report;
}

}  // namespace ghostshard::accountant
