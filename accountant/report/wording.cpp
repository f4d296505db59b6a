// Wording matters here as much as arithmetic: a sentence in the report may claim less than the truth, never more.
// verify compares texts as well as numbers: a former wording stays here for as long as reports with it are to verify.
// Numbers in sentences are rounded up.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "accountant/plain_number.h"
#include "accountant/report/parts.h"
#include "accountant/report/svg_plot.h"

namespace ghostshard::accountant::report_parts {
namespace {

using nlohmann::json;

std::string shortest(double value) { return json(value).dump(); }

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
  std::string text;
  // The product may be rounded down to a whole number: then one more.
  for (const double more : {0.0, 1.0}) {
    text = plain_number((std::ceil(value * scale) + more) / scale, std::chars_format::fixed, digits);
    if (!(number_of_plain(text) < value)) break;
  }
  return text;
}

std::string small_number(double value) {
  if (!(value > 0)) return "0";
  int exponent = static_cast<int>(std::floor(std::log10(value)));
  double mantissa = value / std::pow(10.0, exponent);
  // Up to the third digit; what is a round number but for the division's rounding stays one.
  const double nearest = std::round(mantissa * 100) / 100;
  const std::string exactly = plain_number(nearest, std::chars_format::fixed, 2) + "e" + std::to_string(exponent);
  mantissa = number_of_plain(exactly) >= value ? nearest : std::ceil(mantissa * 100 + 1e-9) / 100;
  if (mantissa >= 10) {
    mantissa /= 10;
    ++exponent;
  }
  constexpr auto kGeneral = std::chars_format::general;
  if (exponent >= -3) return plain_number(mantissa * std::pow(10.0, exponent), kGeneral, 3);
  if (mantissa == 1) return power_of_ten(exponent);
  return plain_number(mantissa, kGeneral, 3) + "×" + power_of_ten(exponent);
}

std::string large_number(double value) {
  const int exponent = static_cast<int>(std::floor(std::log10(value)));
  const double mantissa = std::ceil(value / std::pow(10.0, exponent) * 100 + 1e-9) / 100;
  return plain_number(mantissa, std::chars_format::general, 3) + "×" + power_of_ten(exponent);
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
