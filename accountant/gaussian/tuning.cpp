#include "accountant/gaussian/tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "accountant/gaussian/event_moment.h"
#include "accountant/losses/laws.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr int kPerDecade = 24;  // orders less 1 on the mesh
constexpr int kFirst = -3 * kPerDecade;
constexpr int kLast = 6 * kPerDecade;
constexpr double kMostUseful = 750;  // of D·(1 - 1/lambda): beyond it no order helps, since log(1/g) is less

struct Order {
  double c, k;  // k = c·D(1 + c)
};

double log_moment_of_run(const std::vector<TunedRelease>& run, double c, Adjacency adjacency) {
  double sum = 0;
  for (const auto& [event, count] : run) sum += static_cast<double>(count) * event_log_moment(event, c, adjacency);
  return sum * (1 + kRounding * (4 + static_cast<double>(run.size())));
}

void require_finite(const std::vector<TunedRelease>& run, Adjacency adjacency) {
  for (const auto& [event, count] : run)
    if (infinite_loss(event, adjacency) > 0)
      throw std::invalid_argument("a tuned run must have a finite Rényi divergence; " + type_name(event) +
                                  " may reveal everything: compose it beside the tuning if it is released once");
}

// The run's own moments on the mesh: from the least order to the last that may help. They are kept.
using Mesh = std::vector<Order>;
std::shared_ptr<const Mesh> mesh_of(const Event& key, const std::vector<TunedRelease>& run, Adjacency adjacency) {
  static std::mutex mutex;
  static std::map<std::pair<EventKey, Adjacency>, std::shared_ptr<const Mesh>> known;
  constexpr size_t kMostKept = 64;
  const std::pair place(key_of(key), adjacency);
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(place); found != known.end()) return found->second;
  require_finite(run, adjacency);
  auto mesh = std::make_shared<Mesh>();
  for (int i = kFirst; i <= kLast; ++i) {
    const double c = std::pow(10.0, static_cast<double>(i) / kPerDecade);
    const double k = log_moment_of_run(run, c, adjacency);
    if (!(k / (1 + c) < kMostUseful)) break;
    mesh->push_back({c, k});
  }
  if (known.size() >= kMostKept) known.clear();
  return known[place] = mesh;
}

double log_mean(const TuningNegativeBinomialEvent& event) {
  const double log_g = std::log(event.gamma.value());
  const double share = repeat_share(event.shape.value(), log_g);
  return std::log(share * (1 - event.gamma.value())) - log_g + 16 * kRounding * (1 + std::abs(log_g));
}

}  // namespace

double tuning_log_moment(const TuningNegativeBinomialEvent& event, double c, Adjacency adjacency) {
  const auto mesh = mesh_of(event, event.run, adjacency);
  const double log_inverse = -std::log(event.gamma.value());
  double least = log_inverse;  // lambda^ = 1
  for (const auto& [order, k] : *mesh) least = std::min(least, (k + log_inverse) / (1 + order));
  const double selecting = c * (1 + event.shape.value()) * least;
  const double k = log_moment_of_run(event.run, c, adjacency) + selecting + log_mean(event);
  return std::max(0.0, k + 16 * kRounding * (1 + std::abs(k)));
}

double tuning_log_moment(const TuningPoissonEvent& event, double c, Adjacency adjacency) {
  const auto mesh = mesh_of(event, event.run, adjacency);
  const double m = event.mean.value();
  const double epsilon = std::log1p(1 / c) * (1 - 4 * kRounding);
  double log_delta = 0;
  for (const auto& [order, k] : *mesh) log_delta = std::min(log_delta, log_delta_of_moment(order, k, epsilon));
  const double delta = std::exp(log_delta) * (1 + 1e-13);
  const double some = std::log(m) + log_moment_of_run(event.run, c, adjacency) + c * m * delta;
  const double k = some < kInfinity ? std::max(some, -m) + std::log1p(std::exp(-std::abs(some + m))) : kInfinity;
  return std::max(0.0, k + 16 * kRounding * (1 + std::abs(k) + std::abs(some)));
}

LossCells tuning_losses(const Event& event, Adjacency adjacency) {
  std::vector<Order> mesh;
  for (int i = kFirst; i <= kLast; i += 2) {
    const double c = std::pow(10.0, static_cast<double>(i) / kPerDecade);
    const double k = event_log_moment(event, c, adjacency);
    if (k / c < 2 * kMostUseful)
      mesh.push_back({c, k});
    else if (c > 1)  // below, log E[K]/c may be large
      break;
  }
  return losses_below([&](double loss) {
    double least = 0;
    for (const auto& [c, k] : mesh) least = std::min(least, log_delta_of_moment(c, k, loss));
    return least;
  });
}

}  // namespace ghostshard::accountant
