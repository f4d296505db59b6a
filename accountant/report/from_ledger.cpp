// What a run spent, as its ledger has it.
#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "accountant/report/parts.h"

namespace ghostshard::accountant::report_parts {
namespace {

using nlohmann::json;

// The sampling that each kind of event assumes; empty if nothing depends on it.
std::string sampler_of(const Event& event) {
  if (std::holds_alternative<FixedSizeGaussianEvent>(event)) return "fixed-size";
  if (std::holds_alternative<TruncatedPoissonGaussianEvent>(event)) return "truncated-poisson";
  if (const auto* pass = std::get_if<BallsInBinsGaussianEvent>(&event)) return pass->steps > 1 ? "balls-in-bins" : "";
  const bool beside = !noise_multiplier(event);  // one of these without sampling has a rate of 1
  return std::visit(
      [&](const auto& any) -> std::string {
        if constexpr (requires { any.q; }) return beside && any.q.value() == 1 ? "" : "poisson";
        return "";
      },
      event);
}

json from_header(const LedgerContents& ledger, const char* key) {
  return ledger.header.contains(key) ? ledger.header.at(key) : json(kNotStated);
}

// Epochs before an entry: which key made its noise.
int64_t epoch_of(const LedgerContents& ledger, const LedgerEntry& entry) {
  return std::count_if(ledger.epochs.begin(), ledger.epochs.end(),
                       [&](const LedgerEpoch& epoch) { return epoch.sequence < entry.sequence; });
}

// Of each epoch, 0 being the header's, the first one with its key: noise follows from run id and key, whatever number
// the epoch has.
std::vector<size_t> keys_of_epochs(const LedgerContents& ledger) {
  std::map<std::pair<std::string, std::string>, size_t> first;
  std::vector<size_t> keys;
  const auto add = [&](const json& run_id, const json& key) {
    keys.push_back(first.try_emplace({run_id.dump(), key.dump()}, keys.size()).first->second);
  };
  add(from_header(ledger, "run_id"), from_header(ledger, "key"));
  for (const LedgerEpoch& epoch : ledger.epochs) add(epoch.run_id, epoch.key);
  return keys;
}

// The keys and the releases whose noise they made; more than one key if a resumed run had lost its key.
json key_epochs(const LedgerContents& ledger) {
  json epochs = json::array({{{"epoch", 0}, {"run_id", from_header(ledger, "run_id")}}});
  for (const LedgerEpoch& epoch : ledger.epochs)
    epochs.push_back(
        {{"epoch", epoch.number}, {"run_id", epoch.run_id}, {"key", epoch.key}, {"resumed_at_step", epoch.step}});
  std::vector<int64_t> releases(epochs.size(), 0);
  for (const LedgerEntry& entry : ledger.entries) ++releases[static_cast<size_t>(epoch_of(ledger, entry))];
  for (size_t i = 0; i < epochs.size(); ++i) epochs[i]["releases"] = releases[i];
  return epochs;
}

// Where the run went on after it had stopped, as far as the ledger shows it: a new key begins, or a step comes again
// that was charged before.
json resumptions(const LedgerContents& ledger) {
  json seen = json::array();
  auto epoch = ledger.epochs.begin();
  const auto add = [&](int64_t sequence, int64_t step, bool new_key, bool again) {
    seen.push_back({{"at_line", sequence}, {"step", step}, {"new_key", new_key}, {"steps_charged_again", again}});
  };
  const LedgerEntry* before = nullptr;
  for (const LedgerEntry& entry : ledger.entries) {
    bool new_key = false;
    int64_t line = entry.sequence;
    for (; epoch != ledger.epochs.end() && epoch->sequence < entry.sequence; ++epoch) {
      if (new_key) add(line, epoch[-1].step, true, false);  // one that came to no release
      new_key = true;
      line = epoch->sequence;
    }
    const bool again = before != nullptr && entry.attempt > 0 && entry.step <= before->step;
    if (new_key || again) add(line, entry.step, new_key, again);
    before = &entry;
  }
  for (; epoch != ledger.epochs.end(); ++epoch) add(epoch->sequence, epoch->step, true, false);
  return {{"seen", seen.size()},
          {"at", seen},
          {"meaning", "a run that stopped and went on; one that repeated no step and kept its key leaves no trace"}};
}

}  // namespace

double sampling_rate(const Event& event) {
  if (const auto* fixed = std::get_if<FixedSizeGaussianEvent>(&event))
    return static_cast<double>(fixed->batch) / static_cast<double>(fixed->units);
  if (const auto* pass = std::get_if<BallsInBinsGaussianEvent>(&event)) return 1 / static_cast<double>(pass->steps);
  return std::visit(
      [](const auto& any) {
        if constexpr (requires { any.q; })
          return any.q.value();
        else
          return 1.0;
      },
      event);
}

Spent spent_by(const LedgerContents& ledger) {
  Spent spent;
  spent.groups_void = broken_rule_of_correlation(ledger);
  if (ledger.header.contains("noise_blt")) spent.samplers.insert("cyclic");
  if (spent.groups_void.empty()) spent.rounds = Rounds(sampling_groups(ledger.header));
  std::unordered_map<std::string, size_t> index_of;  // by text: a run with a noise schedule has many distinct events
  const std::vector<size_t> keys = keys_of_epochs(ledger);
  std::set<std::tuple<size_t, size_t, int64_t, int64_t>> keys_used;  // kind of event, key, step, attempt
  for (const LedgerEntry& entry : ledger.entries) {
    const bool grows = spent.rounds.add(entry.step);
    const Run* last = spent.sequence.empty() ? nullptr : &spent.sequence.back();
    size_t index = last == nullptr ? 0 : last->event;
    if (last == nullptr || !(spent.events[index].first == entry.event)) {
      const auto [found, is_new] = index_of.try_emplace(to_json(entry.event).dump(), spent.events.size());
      index = found->second;
      if (is_new) {
        spent.events.emplace_back(entry.event, 0);
        spent.charged.emplace_back(entry.event, 0);
      }
    }
    if (last == nullptr || last->event != index || last->charged != grows) spent.sequence.push_back({index, 0, grows});
    ++spent.sequence.back().releases;
    ++spent.events[index].second;
    if (grows) ++spent.charged[index].second;
    spent.steps.merge(steps_of(entry, ledger.header));
    ++spent.releases_per_attempt[entry.attempt];
    const size_t key = keys[static_cast<size_t>(epoch_of(ledger, entry))];
    const bool fresh = keys_used.insert({entry.event.index(), key, entry.step, entry.attempt}).second;
    spent.noise_repeated = spent.noise_repeated || !fresh;
    if (const std::string sampler = sampler_of(entry.event); !sampler.empty())
      spent.samplers.insert(spent.rounds.groups() > 1 ? "cyclic-" + sampler : sampler);
  }
  return spent;
}

std::unique_ptr<Accountant> account(const Spent& spent, const std::string& name, Adjacency adjacency) {
  auto engine = make_accountant(name, adjacency);
  for (const auto& [event, count] : spent.charged) engine->compose(event, count);
  return engine;
}

json population_and_steps(const LedgerContents& ledger, const Spent& spent) {
  json section = {{"steps_executed", spent.steps.size()}, {"releases_charged", ledger.entries.size()}};
  for (const auto& [in_header, shown] : {std::pair{"units", "units"},
                                         {"expected_batch", "expected_batch"},
                                         {"sampling_rate", "sampling_rate_planned"},
                                         {"planned_steps", "steps_planned"}})
    section[shown] = from_header(ledger, in_header);
  if (ledger.header.contains("maximum_batch")) section["maximum_batch"] = ledger.header.at("maximum_batch");
  std::set<double> rates;
  for (const auto& [event, count] : spent.events)
    if (!sampler_of(event).empty()) rates.insert(sampling_rate(event));
  section["sampling_rates_charged"] = rates;
  if (spent.rounds.groups() > 1)
    section["groups"] = {{"number", spent.rounds.groups()},
                         {"rounds", spent.rounds.by_group()},
                         {"charged", spent.rounds.most()},
                         {"meaning",
                          "each unit belongs to one group, each step draws from one group alone; a unit is charged "
                          "for the rounds of the group with the most"}};
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

// Of a run whose clip norm changes: what its lines state, in the order of the releases.
json clip_norms(const LedgerContents& ledger) {
  json range;
  for (const LedgerEntry& entry : ledger.entries) {
    if (!entry.clip_norm) continue;
    const double value = entry.clip_norm->value();
    if (range.is_null()) range = {{"first", value}, {"least", value}, {"most", value}};
    range["least"] = std::min(value, range["least"].get<double>());
    range["most"] = std::max(value, range["most"].get<double>());
    range["last"] = value;
  }
  return range;
}

json mechanism(const LedgerContents& ledger, const Spent& spent) {
  std::set<double> sigmas;
  json table = json::array();
  for (const auto& [event, count] : spent.events) {
    if (const auto sigma = noise_multiplier(event)) sigmas.insert(*sigma);
    table.push_back({{"event", accountant::to_json(event)}, {"releases", count}});
  }
  json section = {{"events", table},
                  {"noise_multipliers_charged", sigmas},
                  {"noise_multiplier_planned", from_header(ledger, "noise_multiplier")},
                  {"clip_norm", from_header(ledger, "clip_norm")}};
  if (const json range = clip_norms(ledger); !range.is_null()) section["clip_norms"] = range;
  return section;
}

json sampler_section(const Spent& spent, const json& facts) {
  const std::string assumed = assumed_sampler(spent);
  json section = {{"assumed", assumed}, {"executed_is_assumed", nullptr}};
  const json stated = facts.is_object() ? facts.value("executed", json()) : facts;
  if (spent.samplers.empty())
    section["executed_is_assumed"] = true;
  else if (stated.is_string())
    section["executed_is_assumed"] = stated.get<std::string>() == assumed;
  return section;
}

json provenance(const LedgerContents& ledger) {
  const auto text = [&](const char* key) {
    const json value = from_header(ledger, key);
    return value.is_string() ? value : json(kNotStated);
  };
  json header = ledger.header;
  header.erase("facts");  // they are in the sections they speak of
  return {{"run_id", text("run_id")},
          {"ledger_schema", kLedgerSchema},
          {"ledger_head", ledger.head},
          {"ledger_header_hash", ledger.header_hash},
          {"ledger_header", header},
          {"ledger_entries", ledger.entries.size()},
          {"key_epochs", key_epochs(ledger)},
          {"resumptions_in_ledger", resumptions(ledger)},
          {"ledger_partial_line_dropped", ledger.dropped_partial_line},
          {"library_version_of_run", text("library_version")},
          {"library_version_of_report", kLibraryVersion}};
}

}  // namespace ghostshard::accountant::report_parts
