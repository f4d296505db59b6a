// Reading is strict: a key too many or an unknown type means that the writer knew something that this reader
// does not, and accounting it as something else could under-count.
#include "accountant/events.h"

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
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
GHOSTSHARD_EVENT(BallsInBinsGaussianEvent, "balls_in_bins_gaussian", at("steps", &E::steps),
                 at("noise_multiplier", &E::sigma));
GHOSTSHARD_EVENT(LossTableEvent, "loss_table", at("losses", &E::losses), at("probabilities", &E::probabilities),
                 at("infinite", &E::infinite));
GHOSTSHARD_EVENT(TuningNegativeBinomialEvent, "tuning_negative_binomial", at("shape", &E::shape),
                 at("gamma", &E::gamma), at("run", &E::run));
GHOSTSHARD_EVENT(TuningPoissonEvent, "tuning_poisson", at("mean", &E::mean), at("run", &E::run));
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

// Tuning of tuning is refused before it is read: the depth of what is read stays at two.
template <>
std::vector<TunedRelease> read<std::vector<TunedRelease>>(const nlohmann::json& value, const char* key) {
  if (!value.is_array())
    throw std::invalid_argument(std::string("event's ") + key + " must be a list of {event, count}, got " +
                                value.dump());
  std::vector<TunedRelease> run;
  for (const nlohmann::json& one : value) {
    if (!one.is_object() || one.size() != 2 || !one.contains("event") || !one.contains("count"))
      throw std::invalid_argument(std::string("event's ") + key + " must be a list of {event, count}, got " +
                                  one.dump());
    const nlohmann::json& event = one.at("event");
    if (event.is_object() && event.contains("run"))
      throw std::invalid_argument("a tuned run must not be tuning itself, got " + event.dump());
    run.push_back({event_from_json(event), read<int64_t>(one.at("count"), "count")});
  }
  return run;
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
nlohmann::json plain(const std::vector<TunedRelease>& run) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [event, count] : run) list.push_back({{"event", to_json(event)}, {"count", count}});
  return list;
}

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

bool TuningNegativeBinomialEvent::operator==(const TuningNegativeBinomialEvent& other) const {
  return shape == other.shape && gamma == other.gamma && run == other.run;
}
bool TuningPoissonEvent::operator==(const TuningPoissonEvent& other) const {
  return mean == other.mean && run == other.run;
}

EventKey key_of(const Event& event) {
  EventKey key{event.index(), {}, {}};
  // How many numbers of each sort each release of a tuned run has stands before them.
  const auto add_run = [&key](const std::vector<TunedRelease>& run) {
    auto& [index, numbers, counts] = key;
    counts.push_back(static_cast<int64_t>(run.size()));
    for (const TunedRelease& release : run) {
      const auto [kind, of_numbers, of_counts] = key_of(release.event);
      counts.insert(counts.end(), {release.count, static_cast<int64_t>(kind), static_cast<int64_t>(of_numbers.size()),
                                   static_cast<int64_t>(of_counts.size())});
      counts.insert(counts.end(), of_counts.begin(), of_counts.end());
      numbers.insert(numbers.end(), of_numbers.begin(), of_numbers.end());
    }
  };
  for_each_number(event, [&](const char*, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, int64_t>) {
      std::get<2>(key).push_back(value);
    } else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::vector<double>>) {
      std::get<2>(key).push_back(static_cast<int64_t>(value.size()));
      std::get<1>(key).insert(std::get<1>(key).end(), value.begin(), value.end());
    } else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::vector<TunedRelease>>) {
      add_run(value);
    } else {
      std::get<1>(key).push_back(value.value());
    }
  });
  return key;
}

std::string type_name(const Event& event) {
  return std::visit([]<class E>(const E&) { return std::string(Form<E>::kName); }, event);
}

void refuse_event(const std::string& engine, const Event& event, Adjacency adjacency) {
  const bool of_one_size = std::holds_alternative<FixedSizeGaussianEvent>(event) && adjacency != Adjacency::kReplaceOne;
  throw std::invalid_argument("accountant " + engine + " must be given an event that it can bound under " +
                              to_string(adjacency) + " adjacency, got " + type_name(event) +
                              (of_one_size ? ": batches of one size are bounded under replace-one" : ""));
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
