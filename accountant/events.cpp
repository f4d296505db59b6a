// Reading is strict: a key too many or an unknown type means that the writer knew something that this reader
// does not, and accounting it as something else could under-count.
#include "accountant/events.h"

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace ghostshard::accountant {
namespace {

// Of each kind of event: its name, and the names of its numbers in the order of its members.
template <class E>
struct Form;
template <class E, class... T>
struct Fields {
  std::array<const char*, sizeof...(T)> names;
  std::tuple<T E::*...> members;
};
template <class E, class... T>
constexpr Fields<E, T...> fields(std::pair<const char*, T E::*>... named) {
  return {{named.first...}, {named.second...}};
}
template <class E, class T>
constexpr std::pair<const char*, T E::*> at(const char* name, T E::*member) {
  return {name, member};
}

#define GHOSTSHARD_EVENT(Type, text, ...)                \
  template <>                                            \
  struct Form<Type> {                                    \
    using E = Type;                                      \
    static constexpr const char* kName = text;           \
    static constexpr auto kFields = fields(__VA_ARGS__); \
  }
GHOSTSHARD_EVENT(GaussianEvent, "gaussian", at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(PoissonGaussianEvent, "poisson_gaussian", at("sampling_rate", &E::q),
                 at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(FixedSizeGaussianEvent, "fixed_size_gaussian", at("units", &E::units), at("batch", &E::batch),
                 at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(TruncatedPoissonGaussianEvent, "truncated_poisson_gaussian", at("units", &E::units),
                 at("sampling_rate", &E::q), at("cap", &E::cap), at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(AdaptiveClippingEvent, "poisson_adaptive_clipping", at("sampling_rate", &E::q),
                 at("noise_multiplier", &E::sigma), at("count_noise", &E::count_sigma));
GHOSTSHARD_EVENT(LaplaceEvent, "laplace", at("sampling_rate", &E::q), at("noise_multiplier", &E::scale));
GHOSTSHARD_EVENT(DiscreteLaplaceEvent, "discrete_laplace", at("sampling_rate", &E::q), at("noise_parameter", &E::a),
                 at("sensitivity", &E::sensitivity));
GHOSTSHARD_EVENT(DiscreteGaussianEvent, "discrete_gaussian", at("sampling_rate", &E::q),
                 at("standard_deviation", &E::deviation), at("sensitivity", &E::sensitivity));
GHOSTSHARD_EVENT(ExponentialMechanismEvent, "exponential_mechanism", at("epsilon", &E::epsilon));
GHOSTSHARD_EVENT(EpsilonDeltaEvent, "epsilon_delta", at("epsilon", &E::epsilon), at("delta", &E::delta));
GHOSTSHARD_EVENT(ZcdpEvent, "zcdp", at("rho", &E::rho), at("xi", &E::xi));
GHOSTSHARD_EVENT(GroupPoissonGaussianEvent, "group_poisson_gaussian", at("group", &E::group),
                 at("sampling_rate", &E::q), at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(MixtureOfGaussiansEvent, "mixture_of_gaussians", at("standard_deviation", &E::deviation),
                 at("sensitivities", &E::sensitivities), at("probabilities", &E::probabilities));
GHOSTSHARD_EVENT(TreeAggregationEvent, "tree_aggregation", at("steps", &E::steps), at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(LossTableEvent, "loss_table", at("losses", &E::losses), at("probabilities", &E::probabilities),
                 at("infinite", &E::infinite));
#undef GHOSTSHARD_EVENT

template <size_t I = 0>
std::string known_types() {
  std::string known = Form<std::variant_alternative_t<I, Event>>::kName;
  if constexpr (I + 1 < std::variant_size_v<Event>) known += ", " + known_types<I + 1>();
  return known;
}

constexpr const char* kKnownAdjacencies = "zero-out, add-or-remove, replace-one";

void require_keys(const nlohmann::json& json, const char* const* names, size_t count) {
  std::string expected = "type";
  bool exact = json.size() == count + 1;
  for (size_t i = 0; i < count; ++i) {
    expected += std::string(", ") + names[i];
    exact = exact && json.contains(names[i]);
  }
  if (!exact) throw std::invalid_argument("event must have exactly the keys " + expected + ", got " + json.dump());
}

// One number of an event from JSON; throws with the rule.
template <class T>
T read(const nlohmann::json& value, const char* key) {
  if (!value.is_number())
    throw std::invalid_argument(std::string("event's ") + key + " must be a number, got " + value.dump());
  return T(value.get<double>());
}

template <>
int64_t read<int64_t>(const nlohmann::json& value, const char* key) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}))
    throw std::invalid_argument(std::string("event's ") + key + " must be a whole number, got " + value.dump());
  return value.get<int64_t>();
}

template <>
std::vector<double> read<std::vector<double>>(const nlohmann::json& value, const char* key) {
  if (!value.is_array())
    throw std::invalid_argument(std::string("event's ") + key + " must be a list of numbers, got " + value.dump());
  std::vector<double> numbers;
  for (const nlohmann::json& one : value) numbers.push_back(read<double>(one, key));
  return numbers;
}

template <class E>
E event_of(const nlohmann::json& json) {
  const auto& form = Form<E>::kFields;
  require_keys(json, form.names.data(), form.names.size());
  size_t i = 0;
  return std::apply(
      [&]<class... T>(T E::*... members) {
        (void)std::tuple(members...);
        return E{[&] {
          // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): it takes a captured reference for one never bound
          const char* key = form.names[i++];
          return read<T>(json.at(key), key);
        }()...};  // in order: braces
      },
      form.members);
}

// Calls visit(name, value) for each number of an event.
template <class Visit>
void for_each_number(const Event& event, const Visit& visit) {
  std::visit(
      [&]<class E>(const E& one) {
        const auto& form = Form<E>::kFields;
        size_t i = 0;
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): as above
        std::apply([&](auto... members) { (visit(form.names[i++], one.*members), ...); }, form.members);
      },
      event);
}

template <class T>
const auto& plain(const T& value) {
  return value;
}
template <class T>
requires requires(const T& t) { t.value(); }
double plain(const T& value) { return value.value(); }

void require_count(const char* name, int64_t count) {
  if (!(count >= 1)) throw std::invalid_argument(std::string(name) + " must be >= 1, got " + std::to_string(count));
}

// 1 <= part <= units.
void require_part(const char* name, int64_t part, int64_t units) {
  require_count("units", units);
  if (!(part >= 1 && part <= units))
    throw std::invalid_argument(std::string(name) + " must be >= 1 and at most units (" + std::to_string(units) +
                                "), got " + std::to_string(part));
}

constexpr size_t kLongestTable = 1 << 20;
constexpr double kSumsTo = 1e-9;  // how far a table's probabilities may be from 1 together
constexpr double kLargestInteger = 1e9;

void require_limit(const char* name, int64_t value, double most) {
  require_count(name, value);
  if (!(static_cast<double>(value) <= most))
    throw std::invalid_argument(std::string(name) + " must be at most " + std::to_string(static_cast<int64_t>(most)) +
                                ", got " + std::to_string(value));
}

void require_table(const char* name, const std::vector<double>& values, const std::vector<double>& probabilities,
                   double beside) {
  if (values.empty() || values.size() != probabilities.size() || values.size() > kLongestTable)
    throw std::invalid_argument(std::string(name) + " and probabilities must be as many, from 1 to " +
                                std::to_string(kLongestTable) + "; got " + std::to_string(values.size()) + " and " +
                                std::to_string(probabilities.size()));
  for (const double value : values)
    if (!std::isfinite(value))
      throw std::invalid_argument(std::string(name) + " must be finite numbers, got " + std::to_string(value));
  for (const double one : probabilities)
    if (!(one >= 0 && one <= 1))
      throw std::invalid_argument("probabilities must lie between 0 and 1, got " + std::to_string(one));
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), beside);
  if (!(std::abs(sum - 1) <= kSumsTo))
    throw std::invalid_argument("probabilities must add up to 1, got " + std::to_string(sum));
}

struct Check {
  void operator()(const FixedSizeGaussianEvent& e) const { require_part("batch", e.batch, e.units); }
  void operator()(const TruncatedPoissonGaussianEvent& e) const { require_part("cap", e.cap, e.units); }
  void operator()(const DiscreteLaplaceEvent& e) const { require_limit("sensitivity", e.sensitivity, kLargestInteger); }
  void operator()(const DiscreteGaussianEvent& e) const {
    require_limit("sensitivity", e.sensitivity, kLargestInteger);
  }
  void operator()(const GroupPoissonGaussianEvent& e) const { require_limit("group", e.group, 1000); }
  void operator()(const TreeAggregationEvent& e) const { require_count("steps", e.steps); }
  void operator()(const MixtureOfGaussiansEvent& e) const {
    require_table("sensitivities", e.sensitivities, e.probabilities, 0);
    for (const double one : e.sensitivities)
      if (!(one >= 0)) throw std::invalid_argument("sensitivities must be >= 0, got " + std::to_string(one));
  }
  void operator()(const LossTableEvent& e) const {
    require_table("losses", e.losses, e.probabilities, e.infinite.value());
    double other = 0;
    for (size_t i = 0; i < e.losses.size(); ++i)
      if (e.probabilities[i] > 0) other += std::exp(std::log(e.probabilities[i]) - e.losses[i]);
    if (!(other <= 1 + kSumsTo))
      throw std::invalid_argument("probabilities times e^-loss must add up to at most 1, got " + std::to_string(other) +
                                  ": losses are log(P/Q) and probabilities P's");
  }
  void operator()(const auto&) const {}
};

}  // namespace

std::string to_string(Adjacency adjacency) {
  switch (adjacency) {
    case Adjacency::kZeroOut:
      return "zero-out";
    case Adjacency::kAddOrRemove:
      return "add-or-remove";
    case Adjacency::kReplaceOne:
      return "replace-one";
  }
  throw std::invalid_argument(std::string("adjacency must be one of ") + kKnownAdjacencies + "; got number " +
                              std::to_string(static_cast<int>(adjacency)));
}

Adjacency adjacency_from_string(const std::string& text) {
  if (text == "zero-out") return Adjacency::kZeroOut;
  if (text == "add-or-remove") return Adjacency::kAddOrRemove;
  if (text == "replace-one") return Adjacency::kReplaceOne;
  throw std::invalid_argument(std::string("adjacency must be one of ") + kKnownAdjacencies + "; got \"" + text + '"');
}

EventKey key_of(const Event& event) {
  EventKey key{event.index(), {}, {}};
  for_each_number(event, [&](const char*, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, int64_t>) {
      std::get<2>(key).push_back(value);
    } else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::vector<double>>) {
      std::get<2>(key).push_back(static_cast<int64_t>(value.size()));
      std::get<1>(key).insert(std::get<1>(key).end(), value.begin(), value.end());
    } else {
      std::get<1>(key).push_back(value.value());
    }
  });
  return key;
}

std::string type_name(const Event& event) {
  return std::visit([]<class E>(const E&) { return std::string(Form<E>::kName); }, event);
}

std::optional<double> noise_multiplier(const Event& event) {
  return std::visit(
      [](const auto& any) -> std::optional<double> {
        if constexpr (requires { any.sigma; })
          return any.sigma.value();
        else
          return std::nullopt;
      },
      event);
}

void require_valid(const Event& event) { std::visit(Check(), event); }

nlohmann::json to_json(const Event& event) {
  require_valid(event);
  nlohmann::json json = {{"type", type_name(event)}};
  for_each_number(event, [&](const char* name, const auto& value) { json[name] = plain(value); });
  return json;
}

namespace {

template <size_t I = 0>
Event event_named(const std::string& type, const nlohmann::json& json) {
  using E = std::variant_alternative_t<I, Event>;
  if (type == Form<E>::kName) return event_of<E>(json);
  if constexpr (I + 1 < std::variant_size_v<Event>) return event_named<I + 1>(type, json);
  throw std::invalid_argument("event type must be one of " + known_types() + "; got \"" + type + '"');
}

}  // namespace

Event event_from_json(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("type") || !json.at("type").is_string())
    throw std::invalid_argument("event must be an object with a text \"type\", got " + json.dump());
  Event event = event_named(json.at("type").get<std::string>(), json);
  require_valid(event);
  return event;
}

}  // namespace ghostshard::accountant
