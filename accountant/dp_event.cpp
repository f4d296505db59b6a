#include "accountant/dp_event.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using Events = std::vector<std::pair<Event, int64_t>>;
constexpr const char* kModule = "dp_accounting.dp_event";
constexpr int kDeepest = 32;

// What a message says of a value that is no number: the file may be another one than was meant, and private.
std::string kind_of(const json& value) { return value.is_number() ? value.dump() : std::string(value.type_name()); }

std::string class_of(const json& event) {
  if (!event.is_object() || !event.contains("class_name") || !event.at("class_name").is_string())
    throw std::invalid_argument("a dp_accounting event must be an object with a text \"class_name\", not any " +
                                std::string(event.type_name()));
  return event.at("class_name").get<std::string>();
}

// The fields of this class and no others: one that is not known could change the meaning.
void require_fields(const json& event, std::initializer_list<const char*> names) {
  size_t known = 1 + (event.contains("module_name") ? 1 : 0);
  for (const char* name : names) {
    if (!event.contains(name)) throw std::invalid_argument(class_of(event) + " must have " + name);
    ++known;
  }
  if (event.size() != known)
    throw std::invalid_argument(class_of(event) + " has a field that this version does not know");
}

double number(const json& event, const char* name) {
  const json& value = event.at(name);
  if (!value.is_number())
    throw std::invalid_argument(class_of(event) + "'s " + name + " must be a number, got " + kind_of(value));
  return value.get<double>();
}

int64_t whole(const json& event, const char* name) {
  const json& value = event.at(name);
  const double given = number(event, name);
  if (!(std::floor(given) == given && std::abs(given) < 9e15))
    throw std::invalid_argument(class_of(event) + "'s " + name + " must be a whole number, got " + value.dump());
  return static_cast<int64_t>(given);
}

std::vector<double> numbers(const json& event, const char* name) {
  const json& value = event.at(name);
  const bool list =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_number(); });
  if (!list)
    throw std::invalid_argument(class_of(event) + "'s " + name + " must be a list of numbers, got " + kind_of(value));
  return value.get<std::vector<double>>();
}

int64_t product(int64_t a, int64_t b) {
  if (a < 0 || b < 0 || (b > 0 && a > std::numeric_limits<int64_t>::max() / b))
    throw std::invalid_argument("count must be >= 0 and keep the total below 2^63, got " + std::to_string(a) +
                                " times " + std::to_string(b));
  return a * b;
}

void add(const json& event, int64_t count, int depth, Events& found);

Events read(const json& event, int depth) {
  Events found;
  add(event, 1, depth, found);
  return found;
}

// Whatever is made of one Poisson sample. Several Gaussians of one sample are one, whose 1/sigma² is their sum.
Event sampled(const json& event, int depth) {
  const SamplingRate q(number(event, "sampling_probability"));
  const Events inner = read(event.at("event"), depth + 1);
  const auto gaussians = [&] {
    return std::all_of(inner.begin(), inner.end(),
                       [](const auto& one) { return std::holds_alternative<GaussianEvent>(one.first); });
  };
  if (!inner.empty() && gaussians()) {
    if (inner.size() == 1 && inner.front().second == 1) {
      const NoiseMultiplier sigma = std::get<GaussianEvent>(inner.front().first).sigma;
      return q.value() == 1 ? Event(GaussianEvent{sigma}) : Event(PoissonGaussianEvent{q, sigma});
    }
    double precision = 0;
    for (const auto& [one, count] : inner) {
      const double sigma = std::get<GaussianEvent>(one).sigma.value();
      precision += static_cast<double>(count) / (sigma * sigma);
    }
    const double rounding = std::numeric_limits<double>::epsilon() * (8 + static_cast<double>(inner.size()));
    const NoiseMultiplier sigma((1 - rounding) / std::sqrt(precision));
    return q.value() == 1 ? Event(GaussianEvent{sigma}) : Event(PoissonGaussianEvent{q, sigma});
  }
  if (inner.size() == 1 && inner.front().second == 1) {
    Event one = inner.front().first;
    const bool taken = std::visit(
        [&](auto& any) {
          if constexpr (
              requires { any.q = q; } && !requires { any.sigma; }) {
            if (any.q.value() < 1) return false;
            any.q = q;
            return true;
          }
          return false;
        },
        one);
    if (taken) return one;
  }
  throw std::invalid_argument(
      "PoissonSampledDpEvent must be of one Laplace event, or of Gaussians alone: of others on one sample no bound is "
      "known here, got " +
      event.at("event").dump());
}

Event without_replacement(const json& event, int depth) {
  const Events inner = read(event.at("event"), depth + 1);
  const auto* gaussian =
      inner.size() == 1 && inner.front().second == 1 ? std::get_if<GaussianEvent>(&inner[0].first) : nullptr;
  if (gaussian == nullptr)
    throw std::invalid_argument("SampledWithoutReplacementDpEvent must be of one GaussianDpEvent, got " +
                                event.at("event").dump());
  return FixedSizeGaussianEvent{whole(event, "source_dataset_size"), whole(event, "sample_size"), gaussian->sigma};
}

int64_t longest_tree(const json& event) {
  if (event.at("step_counts").is_number()) return whole(event, "step_counts");
  int64_t longest = 0;
  for (const double steps : numbers(event, "step_counts")) {
    if (!(steps >= 1 && steps < 9e15 && std::floor(steps) == steps))
      throw std::invalid_argument("step_counts must be whole numbers >= 1, got " + event.at("step_counts").dump());
    longest = std::max(longest, static_cast<int64_t>(steps));
  }
  return longest;
}

// Of the truncated negative binomial distribution with this mean: rounded to the side of more runs.
double gamma_of(double mean, double shape) {
  const auto mean_at = [shape](double log_g) {
    return repeat_share(shape, log_g) * -std::expm1(log_g) * std::exp(-log_g);
  };
  double many = -700;  // log gamma: the mean falls with it
  double few = -1e-12;
  for (int i = 0; i < 200; ++i) {
    const double middle = (many + few) / 2;
    (mean_at(middle) >= mean ? many : few) = middle;
  }
  if (!(mean > 1 && mean_at(many) >= mean))
    throw std::invalid_argument("RepeatAndSelectDpEvent's mean must be > 1, and one that its shape can have, got " +
                                std::to_string(mean));
  return std::exp(many) * (1 - 1e-12);
}

// shape: infinity is Poisson's; JSON has no word for it but a text.
Event repeated(const json& event, int depth) {
  std::vector<TunedRelease> run;
  for (auto& [release, count] : read(event.at("event"), depth + 1)) run.push_back({std::move(release), count});
  const double mean = number(event, "mean");
  const json& shape = event.at("shape");
  if (shape == "inf") return TuningPoissonEvent{RepeatMean(mean), std::move(run)};
  const RepeatShape given(number(event, "shape"));
  return TuningNegativeBinomialEvent{given, RepeatGamma(gamma_of(mean, given.value())), std::move(run)};
}

// One release, or nothing if the class is none.
std::vector<Event> release(const json& event, const std::string& name, int depth) {
  const auto has = [&](std::initializer_list<const char*> fields) { require_fields(event, fields); };
  if (name == "GaussianDpEvent") {
    has({"noise_multiplier"});
    return {GaussianEvent{NoiseMultiplier(number(event, "noise_multiplier"))}};
  }
  if (name == "LaplaceDpEvent") {
    has({"noise_multiplier"});
    return {LaplaceEvent{SamplingRate(1), NoiseMultiplier(number(event, "noise_multiplier"))}};
  }
  if (name == "DiscreteLaplaceDpEvent") {
    has({"noise_parameter", "sensitivity"});
    return {DiscreteLaplaceEvent{SamplingRate(1), NoiseParameter(number(event, "noise_parameter")),
                                 whole(event, "sensitivity")}};
  }
  if (name == "PoissonSampledDpEvent") {
    has({"sampling_probability", "event"});
    return {sampled(event, depth)};
  }
  if (name == "SampledWithoutReplacementDpEvent") {
    has({"source_dataset_size", "sample_size", "event"});
    return {without_replacement(event, depth)};
  }
  if (name == "TruncatedSubsampledGaussianDpEvent") {
    has({"dataset_size", "sampling_probability", "truncated_batch_size", "noise_multiplier"});
    return {TruncatedPoissonGaussianEvent{
        whole(event, "dataset_size"), SamplingRate(number(event, "sampling_probability")),
        whole(event, "truncated_batch_size"), NoiseMultiplier(number(event, "noise_multiplier"))}};
  }
  if (name == "MixtureOfGaussiansDpEvent") {
    has({"standard_deviation", "sensitivities", "sampling_probs"});
    return {MixtureOfGaussiansEvent{NoiseMultiplier(number(event, "standard_deviation")),
                                    numbers(event, "sensitivities"), numbers(event, "sampling_probs")}};
  }
  if (name == "ZCDpEvent") {
    has({"rho", "xi"});
    return {ZcdpEvent{Rho(number(event, "rho")), Rho(number(event, "xi"))}};
  }
  if (name == "RepeatAndSelectDpEvent") {
    has({"event", "mean", "shape"});
    return {repeated(event, depth)};
  }
  if (name == "SingleEpochTreeAggregationDpEvent") {
    has({"noise_multiplier", "step_counts"});
    return {TreeAggregationEvent{longest_tree(event), NoiseMultiplier(number(event, "noise_multiplier"))}};
  }
  return {};
}

void add(const json& event, int64_t count, int depth, Events& found) {
  if (depth > kDeepest) throw std::invalid_argument("dp_accounting events must be nested at most 32 deep");
  const std::string name = class_of(event);
  if (name == "NoOpDpEvent") return require_fields(event, {});
  if (name == "SelfComposedDpEvent") {
    require_fields(event, {"event", "count"});
    return add(event.at("event"), product(count, whole(event, "count")), depth + 1, found);
  }
  if (name == "ComposedDpEvent") {
    require_fields(event, {"events"});
    if (!event.at("events").is_array()) throw std::invalid_argument("ComposedDpEvent's events must be a list");
    for (const json& one : event.at("events")) add(one, count, depth + 1, found);
    return;
  }
  const std::vector<Event> one = release(event, name, depth);
  if (one.empty()) throw std::invalid_argument("dp_accounting event must be one that can be bounded here, got " + name);
  require_valid(one.front());
  if (count > 0) found.emplace_back(one.front(), count);
}

json made(const char* name, json fields) {
  fields["module_name"] = kModule;
  fields["class_name"] = name;
  return fields;
}

json gaussian(double sigma) { return made("GaussianDpEvent", {{"noise_multiplier", sigma}}); }
json poisson(double q, json event) {
  if (q == 1) return event;
  return made("PoissonSampledDpEvent", {{"sampling_probability", q}, {"event", std::move(event)}});
}

struct Written {
  json operator()(const GaussianEvent& e) const { return gaussian(e.sigma.value()); }
  json operator()(const PoissonGaussianEvent& e) const { return poisson(e.q.value(), gaussian(e.sigma.value())); }
  json operator()(const FixedSizeGaussianEvent& e) const {
    return made("SampledWithoutReplacementDpEvent",
                {{"source_dataset_size", e.units}, {"sample_size", e.batch}, {"event", gaussian(e.sigma.value())}});
  }
  json operator()(const TruncatedPoissonGaussianEvent& e) const {
    return made("TruncatedSubsampledGaussianDpEvent", {{"dataset_size", e.units},
                                                       {"sampling_probability", e.q.value()},
                                                       {"truncated_batch_size", e.cap},
                                                       {"noise_multiplier", e.sigma.value()}});
  }
  json operator()(const AdaptiveClippingEvent& e) const {  // the count moves by one half
    return poisson(e.q.value(), made("ComposedDpEvent",
                                     {{"events", {gaussian(e.sigma.value()), gaussian(2 * e.count_sigma.value())}}}));
  }
  json operator()(const LaplaceEvent& e) const {
    return poisson(e.q.value(), made("LaplaceDpEvent", {{"noise_multiplier", e.scale.value()}}));
  }
  json operator()(const DiscreteLaplaceEvent& e) const {
    return poisson(e.q.value(),
                   made("DiscreteLaplaceDpEvent", {{"noise_parameter", e.a.value()}, {"sensitivity", e.sensitivity}}));
  }
  json operator()(const ZcdpEvent& e) const {
    return made("ZCDpEvent", {{"rho", e.rho.value()}, {"xi", e.xi.value()}});
  }
  json operator()(const MixtureOfGaussiansEvent& e) const {
    return made("MixtureOfGaussiansDpEvent", {{"standard_deviation", e.deviation.value()},
                                              {"sensitivities", e.sensitivities},
                                              {"sampling_probs", e.probabilities}});
  }
  json operator()(const TreeAggregationEvent& e) const {
    return made("SingleEpochTreeAggregationDpEvent", {{"noise_multiplier", e.sigma.value()}, {"step_counts", e.steps}});
  }
  json operator()(const TuningPoissonEvent& e) const { return repeats(e.run, e.mean.value(), "inf"); }
  json operator()(const TuningNegativeBinomialEvent& e) const {
    const double h = e.shape.value();
    const double share = repeat_share(h, std::log(e.gamma.value()));
    return repeats(e.run, share * (1 - e.gamma.value()) / e.gamma.value(), h);
  }
  static json repeats(const std::vector<TunedRelease>& run, double mean, const json& shape) {
    Events releases;
    for (const auto& [event, count] : run) releases.emplace_back(event, count);
    return made("RepeatAndSelectDpEvent", {{"event", to_dp_accounting(releases)}, {"mean", mean}, {"shape", shape}});
  }
  template <class E>
  json operator()(const E& e) const {
    throw std::invalid_argument("dp_accounting must have a class for the event, got " + type_name(e));
  }
};

}  // namespace

Events events_from_dp_accounting(const json& event) { return read(event, 0); }

json to_dp_accounting(const Events& events) {
  json all = json::array();
  for (const auto& [event, count] : events)
    all.push_back(made("SelfComposedDpEvent", {{"event", std::visit(Written(), event)}, {"count", count}}));
  return made("ComposedDpEvent", {{"events", all}});
}

}  // namespace ghostshard::accountant
