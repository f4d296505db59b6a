// What a report takes for granted, and what of it the ledger could be checked against. Wording: wording.cpp.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <variant>

#include "accountant/report/parts.h"

namespace ghostshard::accountant::report_parts {
namespace {

using nlohmann::json;

json unchecked(const std::string& text) { return {{"assumption", text}, {"checked", false}}; }
json checked(const std::string& text, bool holds) {
  return {{"assumption", text}, {"checked", true}, {"holds", holds}};
}

// What the ledger's header announced and its entries can be checked against.
void add_plan(json& list, const json& header, const Spent& spent) {
  // A run that sampled more, or added less noise, than its header announced is accounted correctly, by its
  // entries; the announcement was then not what happened, and the reader should know.
  const bool sized = header.contains("units") && header.contains("expected_batch") && header.at("units").is_number() &&
                     header.at("expected_batch").is_number();
  if (sized && header.contains("noise_blt")) {
    const json apart = header.at("noise_blt").is_object() ? header.at("noise_blt").value("separation", json()) : json();
    const auto planned = planned_separation(header);
    list.push_back(checked("The steps of one unit are units / expected_batch apart, rounded up.",
                           planned && apart == json(*planned)));
  } else if (sized) {
    const auto groups = static_cast<double>(spent.rounds.groups());
    const double rate = groups * header.at("expected_batch").get<double>() / header.at("units").get<double>();
    bool same = true;
    for (const auto& [event, count] : spent.events)
      if (const auto* pass = std::get_if<BallsInBinsGaussianEvent>(&event))
        same = same && static_cast<double>(pass->steps) == std::ceil(1 / rate - 1e-9);
      else if (noise_multiplier(event) && !std::holds_alternative<GaussianEvent>(event) &&
               !std::holds_alternative<TreeAggregationEvent>(event))
        same =
            same && std::abs(sampling_rate(event) - rate) <= 1e-12 * rate + 0x1p-64;  // one division, to 64-bit coins
    const char* rule = "Every charged sampling rate is expected_batch / units.";
    if (groups > 1) rule = "Every charged sampling rate is groups · expected_batch / units.";
    if (spent.samplers.contains("balls-in-bins"))
      rule = "Every charged pass has units / expected_batch steps, rounded up.";
    list.push_back(checked(rule, same));
  }
  if (header.contains("maximum_batch")) {
    bool same = true;
    for (const auto& [event, count] : spent.events) {
      const auto* cut = std::get_if<TruncatedPoissonGaussianEvent>(&event);
      if (noise_multiplier(event))
        same = same && cut != nullptr && header.at("maximum_batch") == cut->cap &&
               header.value("units", json()) == cut->units;
    }
    list.push_back(checked("Every charged batch is of at most maximum_batch of the header's units.", same));
  }
  if (header.contains("noise_blt")) {
    list.push_back(
        checked("Every release is charged as the row of its chain: the planned noise multiplier times the "
                "norm of noise_blt, over what the steps of one unit add up to in that row.",
                spent.groups_void.empty()));
  } else if (header.contains("noise_multiplier") && header.at("noise_multiplier").is_number()) {
    const double planned = header.at("noise_multiplier").get<double>();
    bool same = true;
    for (const auto& [event, count] : spent.events) same = same && noise_multiplier(event).value_or(planned) == planned;
    list.push_back(checked("Every charged noise multiplier is the planned one.", same));
  }
  if (header.contains("planned_steps") && header.at("planned_steps").is_number_integer())
    list.push_back(checked("No more steps were executed than planned.",
                           static_cast<int64_t>(spent.steps.size()) <= header.at("planned_steps").get<int64_t>()));
}

bool adapts_clip_norm(const Spent& spent) {
  return std::any_of(spent.events.begin(), spent.events.end(),
                     [](const auto& charged) { return std::holds_alternative<AdaptiveClippingEvent>(charged.first); });
}

// What the ledger cannot show of how batches were drawn.
void add_sampling(json& list, const Spent& spent) {
  if (spent.samplers.contains("poisson") || spent.samplers.contains("truncated-poisson"))
    list.push_back(
        unchecked("Each unit was included in each step independently, with exactly the charged "
                  "probability, and which units were included stays secret."));
  if (spent.samplers.contains("cyclic-poisson"))
    list.push_back(
        unchecked("Each unit belonged to one group, by its place in the data alone. Each step drew from the group that "
                  "its number names and from no other, each of that group's units independently with exactly the "
                  "charged probability, and which units were included stays secret."));
  if (spent.samplers.contains("cyclic"))
    list.push_back(
        unchecked("Each unit took part in the steps whose number has one remainder by the separation of noise_blt, "
                  "which its place in the data alone decides, and in no other step. Who knows these steps learns "
                  "nothing that is not accounted."));
  if (spent.samplers.contains("balls-in-bins"))
    list.push_back(
        unchecked("In each charged pass each unit was in exactly one step, each of the charged number with the same "
                  "probability, independently of all other units and passes; which one stays secret, and no step of a "
                  "pass was released twice. A pass is charged whole, whatever part of it was made."));
  if (spent.samplers.contains("truncated-poisson"))
    list.push_back(
        unchecked("Where more units were drawn than the cap, those kept were chosen uniformly among them; the data set "
                  "has no more units than charged, one more for a neighbour."));
  if (adapts_clip_norm(spent))
    list.push_back(
        unchecked("The count by which the clip norm was adapted counts each unit once, is centred at one half, and "
                  "has noise of its own with the charged deviation."));
  std::set<std::string> beside;
  for (const auto& [event, count] : spent.events)
    if (!noise_multiplier(event)) beside.insert(type_name(event));
  for (const std::string& type : beside)
    list.push_back(unchecked("Each release of type " + type +
                             " is of the mechanism that its event describes, with the charged numbers, and its noise "
                             "is independent of all other noise."));
  if (spent.samplers.contains("fixed-size"))
    list.push_back(
        unchecked("Each batch was drawn uniformly among all batches of exactly the charged size, independently in each "
                  "step, and which units were included stays secret."));
}

std::string noise_sentence(const json& header) {
  if (header.contains("noise_chain"))
    return "The noise of each release is a Gaussian with the charged multiple of that norm times the norm of the rest "
           "of its chain, independent of the data and unknown to who sees the releases, less the part that noise_chain "
           "in "
           "the header names of the noise that the step before drew. Nothing else has noise in common: a chain is at "
           "most as long as noise_chain says, and ends with a repetition or a resumption.";
  if (header.contains("noise_blt"))
    return "The noise of each release and that of all steps before it in its chain, weighted by noise_blt in the "
           "header, add up to a Gaussian with the planned multiple of that norm times the norm of noise_blt, "
           "independent of the data and of all other such sums, and unknown to who sees the releases. Only steps that "
           "followed each other "
           "without a repetition or a resumption stand in one chain.";
  if (!header.contains("noise_bands"))
    return "The noise of each release is Gaussian with the charged multiple of that norm, independent of the data and "
           "of all other noise, and unknown to who sees the releases.";
  return "The noise of each release and that of the steps before it, weighted by noise_bands in the header, add up to "
         "a Gaussian with the charged multiple of that norm times the norm of noise_bands, independent of the data "
         "and of all other such sums, and unknown to who sees the releases. Only steps that followed each other "
         "without a repetition or a resumption stand in one such sum.";
}

}  // namespace

json assumptions(const LedgerContents& ledger, const Spent& spent) {
  json list = json::array();
  list.push_back(checked("The ledger's hash chain, schema and sequence numbers are intact.", true));
  add_plan(list, ledger.header, spent);
  list.push_back(
      checked("No two releases of one kind have key epoch, step and attempt in common, on which their noise depends.",
              !spent.noise_repeated));
  list.push_back(
      unchecked("The ledger is complete: every release was written to it, and no line was taken off its "
                "end since. Compare its head, given under provenance, with a copy kept elsewhere."));
  add_sampling(list, spent);
  list.push_back(
      unchecked("One unit's contribution to each sum had at most the stated L2 norm, cross terms of "
                "shared parameters and rounding included."));
  list.push_back(unchecked(noise_sentence(ledger.header)));
  list.push_back(unchecked("Noise in floating-point arithmetic behaves like real-valued noise."));
  list.push_back(
      unchecked(adapts_clip_norm(spent)
                    ? "The clip norm of each step followed from the releases before it alone; the first one, noise "
                      "multiplier, expected batch and number of units were fixed without looking at the data."
                    : "Clip norm, noise multiplier, expected batch and number of units were fixed without "
                      "looking at the data."));
  list.push_back(unchecked("Each record belongs to one unit, and units are what this report says they are."));
  list.push_back(unchecked("Nothing but the releases and what was computed from them left the trusted machines."));
  const json facts = ledger.header.value("facts", json());
  const json sampler = facts.is_object() ? facts.value("sampler", json()) : json();
  for (const char* statement : {"of_the_program", "of_the_seed"}) {
    if (sampler.is_object() && sampler.value(statement, json()).is_string())
      list.push_back(unchecked(sampler.at(statement).get<std::string>()));
  }
  return list;
}

}  // namespace ghostshard::accountant::report_parts
