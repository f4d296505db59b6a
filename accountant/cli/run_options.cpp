#include "accountant/cli/run_options.h"

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/cli/numbers.h"
#include "accountant/dp_event.h"
#include "accountant/ledger/durable_file.h"
#include "accountant/ledger/strict_json.h"
#include "accountant/report/parts.h"
#include "accountant/standard_streams.h"

namespace ghostshard::accountant::cli {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// Sampling everybody is not sampling: the event that every adjacency and engine knows.
Event sampled(double q, double sigma) {
  const SamplingRate rate(q);
  const NoiseMultiplier noise(sigma);
  if (q == 1) return GaussianEvent{noise};
  return PoissonGaussianEvent{rate, noise};
}

std::pair<Event, int64_t> phase(const std::string& text) {
  const auto parts = split(text);
  if (parts.size() != 3)
    throw std::invalid_argument("--phase must be Q:SIGMA:STEPS, e.g. 0.01:1.1:5000, got \"" + text + '"');
  return {
      sampled(parse_number("--phase's sampling rate", parts[0]), parse_number("--phase's noise multiplier", parts[1])),
      parse_count("--phase's steps", parts[2])};
}

std::pair<Event, int64_t> fixed_phase(const std::string& text) {
  const auto parts = split(text);
  if (parts.size() != 4)
    throw std::invalid_argument("--fixed-phase must be BATCH:UNITS:SIGMA:STEPS, e.g. 256:60000:1.1:5000, got \"" +
                                text + '"');
  const Event event = FixedSizeGaussianEvent{
      parse_count("--fixed-phase's units", parts[1]), parse_count("--fixed-phase's batch", parts[0]),
      NoiseMultiplier(parse_number("--fixed-phase's noise multiplier", parts[2]))};
  require_valid(event);
  return {event, parse_count("--fixed-phase's steps", parts[3])};
}

std::pair<Event, int64_t> truncated_phase(const std::string& text) {
  const auto parts = split(text);
  if (parts.size() != 5)
    throw std::invalid_argument(
        "--truncated-phase must be CAP:UNITS:Q:SIGMA:STEPS, e.g. 300:60000:256/60000:1.1:5000, got \"" + text + '"');
  const Event event =
      TruncatedPoissonGaussianEvent{parse_count("--truncated-phase's units", parts[1]),
                                    SamplingRate(parse_number("--truncated-phase's sampling rate", parts[2])),
                                    parse_count("--truncated-phase's cap", parts[0]),
                                    NoiseMultiplier(parse_number("--truncated-phase's noise multiplier", parts[3]))};
  require_valid(event);
  return {event, parse_count("--truncated-phase's steps", parts[4])};
}

std::pair<Event, int64_t> bins_phase(const std::string& text) {
  const auto parts = split(text);
  if (parts.size() != 3)
    throw std::invalid_argument("--bins-phase must be BINS:SIGMA:PASSES, e.g. 41:0.7:10, got \"" + text + '"');
  const Event event =
      BallsInBinsGaussianEvent{parse_count("--bins-phase's bins", parts[0]),
                               NoiseMultiplier(parse_number("--bins-phase's noise multiplier", parts[1]))};
  require_valid(event);
  return {event, parse_count("--bins-phase's passes", parts[2])};
}

constexpr size_t kLongestShown = 200;  // of what was typed

// shown: what a message may say of it. The content of a file is not among that: by mistake it may be private.
nlohmann::json parsed(const std::string& option, const std::string& text, const std::string& shown) {
  std::optional<nlohmann::json> json;
  try {
    json = parse_strictly(text, kLongestJsonDocument);
  } catch (const std::invalid_argument&) {  // two readers might see two values in it
    throw std::invalid_argument(option + " must be JSON that has each key of an object once and is nested at most " +
                                std::to_string(kDeepestJson) + " deep, " + shown);
  }
  if (!json) throw std::invalid_argument(option + " must be JSON, " + shown);
  return *std::move(json);
}

// COUNT:{…}, or {…} for one.
std::pair<Event, int64_t> beside(const std::string& text) {
  const size_t brace = text.find('{');
  int64_t count = 1;
  if (brace != 0) {
    if (brace == std::string::npos || text[brace - 1] != ':')
      throw std::invalid_argument(
          R"(--event must be COUNT:{"type":...}, e.g. 1:{"type":"laplace","noise_multiplier":2,"sampling_rate":1}, got )" +
          text.substr(0, kLongestShown));
    count = parse_count("--event's count", text.substr(0, brace - 1));
  }
  return {event_from_json(parsed("--event", text.substr(brace), "got " + text.substr(brace, kLongestShown))), count};
}

std::vector<std::pair<Event, int64_t>> from_file(const std::string& path) {
  const std::string text = read_named("--dp-event", path, kLongestJsonDocument);
  return events_from_dp_accounting(parsed("--dp-event", text, "the content of " + path + " is not"));
}

// The releases of a ledger that its report charges a unit for, in order. A run that a report claims nothing of is
// refused.
void add_charged(const LedgerContents& ledger, std::vector<std::pair<Event, int64_t>>& phases,
                 std::vector<std::string>& notes) {
  const report_parts::Spent spent = report_parts::spent_by(ledger);
  const nlohmann::json facts = report_parts::facts_of_header(ledger.header);
  if (const auto reasons = report_parts::void_reasons(ledger.header, spent, facts); !reasons.empty())
    throw std::invalid_argument("the ledger bounds nothing: " + reasons.front() +
                                " (`ghostshard account report` says what is claimed)");
  const size_t besides = phases.size();
  const bool grouped = spent.rounds.groups() > 1;
  if (grouped && besides > 0)
    throw std::invalid_argument(
        "--event and --dp-event must not stand beside a ledger whose units are dealt to groups: these are accounted "
        "for one repeated Poisson-sampled Gaussian alone");
  for (const report_parts::Run& run : spent.sequence) {
    if (!run.charged) continue;
    const Event& event = spent.events[run.event].first;
    if (phases.size() == besides || !(phases.back().first == event)) phases.emplace_back(event, 0);
    phases.back().second += run.releases;
  }
  if (report_parts::shows_unnoised(facts))
    notes.emplace_back("the run also showed numbers without noise (nonprivate_metrics), which are not counted");
  if (grouped)
    notes.push_back("the units are dealt to " + std::to_string(spent.rounds.groups()) + " groups: of " +
                    std::to_string(ledger.entries.size()) + " releases, the " + std::to_string(spent.rounds.most()) +
                    " of the group with the most are counted");
}

}  // namespace

void AccountingOptions::add_to(CLI::App& command) {
  command
      .add_option("--accountant", accountant,
                  "contour (tightest), prv (an independent grid) or rdp (as in older papers)")
      ->capture_default_str()
      ->group("How");
  command
      .add_option("--adjacency", adjacency,
                  "zero-out (the default), add-or-remove or replace-one; a ledger names its own")
      ->group("How");
  command.add_flag("--json", json, "print one JSON object with every digit")->group("How");
}

void RunOptions::add_to(CLI::App& command) {
  command.add_option("-q,--sampling-rate", rate_, kRateHelp)->group("What ran");
  command.add_option("-s,--noise-multiplier", sigma_, kNoiseHelp)->group("What ran");
  command.add_option("-t,--steps", steps_, "number of steps")->group("What ran");
  command.add_option("--phase", phases_, "Q:SIGMA:STEPS, instead of the three above; may be given several times")
      ->group("What ran");
  command
      .add_option("--fixed-phase", fixed_phases_,
                  "BATCH:UNITS:SIGMA:STEPS: batches of one size, drawn without replacement")
      ->group("What ran");
  command
      .add_option("--truncated-phase", truncated_phases_,
                  "CAP:UNITS:Q:SIGMA:STEPS: Poisson sampling, of which at most CAP are kept")
      ->group("What ran");
  command
      .add_option("--bins-phase", bins_phases_,
                  "BINS:SIGMA:PASSES: passes over the data, in each of which every unit is in one of so many steps")
      ->group("What ran");
  command.add_option("--ledger", ledger_, "a run's ledger.jsonl")->group("What ran");
  command
      .add_option("--event", events_,
                  "COUNT:{\"type\":…}: releases beside the gradients, as a ledger has them: laplace, discrete_laplace, "
                  "discrete_gaussian, exponential_mechanism, epsilon_delta, zcdp, group_poisson_gaussian, "
                  "mixture_of_gaussians, tree_aggregation, balls_in_bins_gaussian, loss_table, "
                  "tuning_negative_binomial, tuning_poisson")
      ->group("What ran");
  command.add_option("--dp-event", dp_events_, "a file with a DpEvent of dp_accounting as JSON")->group("What ran");
}

LedgerContents open_ledger(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    throw std::invalid_argument("--ledger must name a file, got " + path);
  return read_ledger(path);
}

std::string cut_short_note(const std::string& path, const LedgerContents& ledger) {
  return "the last line of " + path + " is cut short, as by a crash: its release had not been permitted yet; the " +
         std::to_string(ledger.entries.size()) + " whole releases before it are counted";
}

void say(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cerr << "note: " << one_line(note) << '\n';
}

std::optional<double> stated_delta(const LedgerContents& ledger) {
  const auto found = ledger.header.find("delta");
  if (found == ledger.header.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

Adjacency adjacency_of(const AccountingOptions& accounting) {
  return accounting.adjacency.empty() ? Adjacency::kZeroOut : adjacency_from_string(accounting.adjacency);
}

Run RunOptions::read(const AccountingOptions& accounting, std::vector<std::string>& notes) const {
  const bool single = !rate_.empty() || !sigma_.empty() || !steps_.empty();
  const bool phases = !phases_.empty() || !fixed_phases_.empty() || !truncated_phases_.empty() || !bins_phases_.empty();
  const int ways = single + phases + !ledger_.empty();
  if (ways > 1 || (ways == 0 && events_.empty() && dp_events_.empty()))
    throw std::invalid_argument(
        "what ran must be given in exactly one way: --sampling-rate, --noise-multiplier and --steps, or --phase, or "
        "--ledger, or --event and --dp-event alone");
  Run run;
  run.adjacency = adjacency_of(accounting);
  for (const std::string& text : events_) run.phases.push_back(beside(text));
  for (const std::string& path : dp_events_)
    for (auto& charged : from_file(path)) run.phases.push_back(std::move(charged));
  if (single) {
    if (rate_.empty() || sigma_.empty() || steps_.empty())
      throw std::invalid_argument("--sampling-rate, --noise-multiplier and --steps must be given together");
    run.phases.emplace_back(sampled(parse_number("--sampling-rate", rate_), parse_number("--noise-multiplier", sigma_)),
                            parse_count("--steps", steps_));
    return run;
  }
  for (const std::string& text : phases_) run.phases.push_back(phase(text));
  for (const std::string& text : fixed_phases_) run.phases.push_back(fixed_phase(text));
  for (const std::string& text : truncated_phases_) run.phases.push_back(truncated_phase(text));
  for (const std::string& text : bins_phases_) run.phases.push_back(bins_phase(text));
  if (ledger_.empty()) return run;

  run.ledger = open_ledger(ledger_);
  if (run.ledger->dropped_partial_line) notes.push_back(cut_short_note(ledger_, *run.ledger));
  const Adjacency stated = adjacency_from_string(run.ledger->header.at("adjacency").get<std::string>());
  if (!accounting.adjacency.empty() && stated != run.adjacency)
    throw std::invalid_argument("--adjacency must be that of the ledger (" + to_string(stated) + "), got " +
                                accounting.adjacency);
  run.adjacency = stated;
  run.delta = stated_delta(*run.ledger);
  add_charged(*run.ledger, run.phases, notes);
  return run;
}

std::unique_ptr<Accountant> Run::account(const std::string& accountant) const {
  auto engine = make_accountant(accountant, adjacency);
  for (const auto& [event, count] : phases) engine->compose(event, count);
  return engine;
}

nlohmann::json Run::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [event, count] : phases) list.push_back({{"event", accountant::to_json(event)}, {"count", count}});
  return list;
}

std::string Run::describe() const {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < phases.size() && i < kShown; ++i) {
    const nlohmann::json event = accountant::to_json(phases[i].first);
    text += (i > 0 ? " + " : "") + std::to_string(phases[i].second) + " x " + type_name(phases[i].first);
    for (const auto& [key, value] : event.items())
      if (key != "type") text += ", " + key + " " + value.dump();
  }
  if (phases.size() > kShown) text += " + " + std::to_string(phases.size() - kShown) + " further phases";
  return text.empty() ? "nothing" : text;
}

}  // namespace ghostshard::accountant::cli
