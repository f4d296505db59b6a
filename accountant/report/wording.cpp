// Wording matters here as much as arithmetic: a sentence in the report may claim less than the truth, never more.
// verify compares texts as well as numbers: a former wording stays here for as long as reports with it are to verify.
// Numbers in sentences are rounded up.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "accountant/report/parts.h"
#include "accountant/report/svg_plot.h"

namespace ghostshard::accountant::report_parts {
namespace {

using nlohmann::json;

std::string shortest(double value) { return json(value).dump(); }

json unchecked(const std::string& text) { return {{"assumption", text}, {"checked", false}}; }
json checked(const std::string& text, bool holds) {
  return {{"assumption", text}, {"checked", true}, {"holds", holds}};
}

std::string change_of(Adjacency adjacency, const std::string& unit) {
  switch (adjacency) {
    case Adjacency::kZeroOut:
      return "replacing the record of any one " + unit + " by one that contributes nothing";
    case Adjacency::kAddOrRemove:
      return "adding or removing any one " + unit;
    case Adjacency::kReplaceOne:
      return "replacing the record of any one " + unit + " by any other record";
  }
  throw std::invalid_argument("adjacency must be a known one");
}

std::string upper_case(std::string text) {  // its first letter
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// 0.0123 as "1.3 %", rounded up.
std::string percent_up(double share) {
  const double percent = share * 100;
  return rounded_up(percent, percent < 1 ? 2 : 1) + " %";
}

}  // namespace

std::string rounded_up(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  char text[400];
  // The product may be rounded down to a whole number: then one more.
  for (const double more : {0.0, 1.0}) {
    std::snprintf(text, sizeof text, "%.*f", digits, (std::ceil(value * scale) + more) / scale);
    if (!(std::strtod(text, nullptr) < value)) break;
  }
  return text;
}

std::string small_number(double value) {
  if (!(value > 0)) return "0";
  int exponent = static_cast<int>(std::floor(std::log10(value)));
  double mantissa = value / std::pow(10.0, exponent);
  // Up to the third digit; what is a round number but for the division's rounding stays one.
  const double nearest = std::round(mantissa * 100) / 100;
  char exactly[64];
  std::snprintf(exactly, sizeof exactly, "%.2fe%d", nearest, exponent);
  mantissa = std::strtod(exactly, nullptr) >= value ? nearest : std::ceil(mantissa * 100 + 1e-9) / 100;
  if (mantissa >= 10) {
    mantissa /= 10;
    ++exponent;
  }
  char text[64];
  if (exponent >= -3) {
    std::snprintf(text, sizeof text, "%.3g", mantissa * std::pow(10.0, exponent));
    return text;
  }
  if (mantissa == 1) return power_of_ten(exponent);
  std::snprintf(text, sizeof text, "%.3g×", mantissa);
  return text + power_of_ten(exponent);
}

std::string large_number(double value) {
  const int exponent = static_cast<int>(std::floor(std::log10(value)));
  char text[64];
  std::snprintf(text, sizeof text, "%.3g×", std::ceil(value / std::pow(10.0, exponent) * 100 + 1e-9) / 100);
  return text + power_of_ten(exponent);
}

json adjacency_section(Adjacency adjacency) {
  std::string meaning = "two data sets are neighbours if ";
  switch (adjacency) {
    case Adjacency::kZeroOut:
      meaning += "they differ in one unit whose record is replaced by one that contributes nothing";
      break;
    case Adjacency::kAddOrRemove:
      meaning += "one is the other with one unit added or removed";
      break;
    case Adjacency::kReplaceOne:
      meaning += "they differ in one unit whose record is replaced by any other";
      break;
  }
  return {{"relation", to_string(adjacency)},
          {"meaning", meaning},
          {"number_of_units_is_public", adjacency != Adjacency::kAddOrRemove}};
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
      "validation, early stopping, choice among runs, unless the boundary of the claim is said to include them.");
  list.push_back(
      "Protection against whoever sees the training machines, their memory or their links, or knows the "
      "noise key.");
  list.push_back("Protection of the training data where it is stored, or against its other uses.");
  list.push_back("Accuracy, fairness or truthfulness of the model.");
  return list;
}

namespace {

// What the ledger's header announced and its entries can be checked against.
void add_plan(json& list, const json& header, const Spent& spent) {
  // A run that sampled more, or added less noise, than its header announced is accounted correctly, by its
  // entries; the announcement was then not what happened, and the reader should know.
  const bool sized = header.contains("units") && header.contains("expected_batch") && header.at("units").is_number() &&
                     header.at("expected_batch").is_number();
  if (sized && header.contains("noise_blt")) {
    const double steps = header.at("units").get<double>() / header.at("expected_batch").get<double>();
    const json apart = header.at("noise_blt").is_object() ? header.at("noise_blt").value("separation", json()) : json();
    list.push_back(checked("The steps of one unit are units / expected_batch apart, rounded up.",
                           steps > 0 && steps < 1e15 && apart == json(static_cast<int64_t>(std::ceil(steps - 1e-9)))));
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

}  // namespace

namespace {

std::string noise_sentence(const json& header) {
  if (header.contains("noise_chain"))
    return "The noise of each release is a Gaussian with the charged multiple of that norm times the norm of the rest "
           "of "
           "its chain, independent of the data and unknown to who sees the releases, less the part that noise_chain in "
           "the header names of the noise that the step before drew. Nothing else has noise in common: a chain is at "
           "most as long as noise_chain says, and ends with a repetition or a resumption.";
  if (header.contains("noise_blt"))
    return "The noise of each release and that of all steps before it in its chain, weighted by noise_blt in the "
           "header, "
           "add up to a Gaussian with the planned multiple of that norm times the norm of noise_blt, independent of "
           "the "
           "data and of all other such sums, and unknown to who sees the releases. Only steps that followed each other "
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
  if (sampler.is_object() && sampler.value("of_the_program", json()).is_string())
    list.push_back(unchecked(sampler.at("of_the_program").get<std::string>()));
  return list;
}

std::string statement(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit,
                      const std::vector<std::string>& reasons, bool unnoised_shown) {
  if (!reasons.empty()) {
    std::string text = "No differential privacy guarantee is claimed: ";
    for (size_t i = 0; i < reasons.size(); ++i) text += (i > 0 ? "; " : "") + reasons[i];
    return text + '.';
  }
  const std::string change = change_of(adjacency, unit);
  return "Under the assumptions listed in this report, " + change +
         " changes the probability of any set of outcomes of the recorded releases, and of anything computed from "
         "them alone, by at most a factor e^epsilon plus delta, with epsilon = " +
         rounded_up(bound.upper) + " and delta = " + shortest(delta.value()) + ". It covers one " + unit +
         " at a time and these releases only; what is not covered is listed with it." +
         (unnoised_shown ? " Numbers computed from private data without noise were shown as well: whoever saw them "
                           "has no guarantee."
                         : "");
}

namespace {

// e^epsilon as a reader knows numbers: "19.34", "2,981", "1.61×10¹¹".
std::string times(double epsilon) {
  constexpr double kLargestPower = 700;  // of a double
  const double factor = std::exp(epsilon) * (1 + 1e-12);
  if (epsilon < 7) return rounded_up(factor, 2);
  if (epsilon > kLargestPower) return "e^" + rounded_up(epsilon, 2);
  if (factor >= 1e9) return large_number(factor);
  std::string digits = std::to_string(static_cast<int64_t>(std::ceil(factor)));
  for (size_t place = digits.size(); place > 3; place -= 3) digits.insert(place - 3, 1, ',');
  return digits;
}

// delta is no probability of an exception: it bounds E[(1 - e^(epsilon - loss))+], and an outcome whose loss exceeds
// epsilon by a little counts but for a little. So P(loss > epsilon + log 2)/2 <= delta.
std::string what_changes(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit) {
  return "What difference can any one " + unit + " make? " + upper_case(change_of(adjacency, unit)) +
         " makes whatever may come out of this run, any set of outcomes, at most " + times(bound.upper) +
         " times as likely as it was, plus " + small_number(delta.value()) +
         ". It follows that what comes out is more than " + times(bound.upper + std::log(2.0)) +
         " times as likely as it was with a probability of at most " + small_number(std::min(1.0, 2 * delta.value())) +
         ". Both hold the other way round as well.";
}

}  // namespace

// As versions up to 0.1.0 had it.
std::string former_first_words(double epsilon, Delta delta, Adjacency adjacency, const std::string& unit) {
  return "What difference can any one " + unit + " make? " + upper_case(change_of(adjacency, unit)) +
         " makes no outcome of this run more than " +
         (epsilon < 7 ? rounded_up(std::exp(epsilon), 2) : "e^" + rounded_up(epsilon, 2)) +
         " times as likely, or as unlikely, as it was, except for a part of probability at most " +
         small_number(delta.value()) + ".";
}

json plain_words(const EpsilonBound& bound, Delta delta, Adjacency adjacency, const std::string& unit,
                 const json& membership_bounds) {
  json words = json::array();
  words.push_back(what_changes(bound, delta, adjacency, unit));
  for (const json& rate : membership_bounds) {
    if (rate.at("false_positive_rate") != json(0.01)) continue;
    const double most = rate.at("true_positive_rate_at_most");
    words.push_back("Somebody who knows everything except whether one given " + unit +
                    " was in the data, sees all that was released and accepts one false alarm in 100 finds out with a "
                    "probability of at most " +
                    percent_up(most) +
                    " that it was. By guessing alone that would be 1 %; without privacy it may be 100 %.");
  }
  words.push_back(
      "This holds whatever else that somebody knows or will ever learn, and nothing that is done later to what "
      "was released can weaken it.");
  // The tiers of "How to DP-fy ML" (arXiv:2303.00654, section 5.2.1).
  if (bound.upper > 10)
    words.push_back(
        "An epsilon above 10 is a weak promise: taken by itself it rules out little, and an empirical audit should "
        "stand beside it.");
  return words;
}

}  // namespace ghostshard::accountant::report_parts
