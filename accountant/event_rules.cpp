// What must hold of an event's numbers together. Each number's own rule is its type's (types.h).
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "accountant/events.h"
#include "accountant/shown.h"

namespace ghostshard::accountant {
namespace {

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
constexpr size_t kLongestRun = 1 << 16;

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
      throw std::invalid_argument(std::string(name) + " must be finite numbers, got " + shown(value));
  for (const double one : probabilities)
    if (!(one >= 0 && one <= 1))
      throw std::invalid_argument("probabilities must lie between 0 and 1, got " + shown(one));
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), beside);
  if (!(std::abs(sum - 1) <= kSumsTo)) throw std::invalid_argument("probabilities must add up to 1, got " + shown(sum));
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
  void operator()(const BallsInBinsGaussianEvent& e) const {
    require_limit("steps", e.steps, static_cast<double>(kMostBins));
    const double sigma = e.sigma.value();
    if (e.steps > 1 && !(sigma >= kLeastBinsNoise && sigma <= kMostBinsNoise))
      throw std::invalid_argument("the noise multiplier of balls-in-bins sampling must be from 0.05 to 1000, got " +
                                  shown(sigma));
  }
  void operator()(const MixtureOfGaussiansEvent& e) const {
    require_table("sensitivities", e.sensitivities, e.probabilities, 0);
    for (const double one : e.sensitivities)
      if (!(one >= 0)) throw std::invalid_argument("sensitivities must be >= 0, got " + shown(one));
  }
  void operator()(const LossTableEvent& e) const {
    require_table("losses", e.losses, e.probabilities, e.infinite.value());
    double other = 0;
    for (size_t i = 0; i < e.losses.size(); ++i)
      if (e.probabilities[i] > 0) other += std::exp(std::log(e.probabilities[i]) - e.losses[i]);
    if (!(other <= 1 + kSumsTo))
      throw std::invalid_argument("probabilities times e^-loss must add up to at most 1, got " + shown(other) +
                                  ": losses are log(P/Q) and probabilities P's");
  }
  void operator()(const TuningNegativeBinomialEvent& e) const { require_run(e.run); }
  void operator()(const TuningPoissonEvent& e) const { require_run(e.run); }
  void operator()(const auto&) const {}

  static void require_run(const std::vector<TunedRelease>& run) {
    if (run.empty() || run.size() > kLongestRun)
      throw std::invalid_argument("run must have from 1 to " + std::to_string(kLongestRun) + " releases, got " +
                                  std::to_string(run.size()));
    for (const auto& [event, count] : run) {
      if (is_tuning(event))
        throw std::invalid_argument("a tuned run must not be tuning itself, got " + type_name(event));
      require_valid(event);
      require_count("count", count);
    }
  }
};

}  // namespace

bool is_tuning(const Event& event) {
  return std::holds_alternative<TuningNegativeBinomialEvent>(event) ||
         std::holds_alternative<TuningPoissonEvent>(event);
}

// Next to 0 the product with a shape that is hardly a double has no digits; the limit differs from it by
// |shape·log_gamma|/2 of itself.
double repeat_share(double shape, double log_gamma) {
  return std::abs(shape * log_gamma) < 1e-17 ? -1 / log_gamma : shape / -std::expm1(shape * log_gamma);
}

void require_valid(const Event& event) { std::visit(Check(), event); }

}  // namespace ghostshard::accountant
