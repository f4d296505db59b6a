#include "accountant/receipt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/releases.h"
#include "accountant/receipt/line.h"
#include "accountant/receipt/phases.h"
#include "accountant/rounds.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using receipt::Line;
using Releases = std::vector<ComposedRelease>;

constexpr size_t kMostPhases = 12;  // distinct releases: the checker takes half a second for each
constexpr double kSmoothedDigits = 18;
constexpr double kMostMeshNodes = 60'000;
constexpr std::array kDirections = {Direction::kRemove, Direction::kAdd};

// One direction's proof of some epsilon, and of every larger one.
struct Proof {
  double epsilon;                           // the least that it proves
  std::function<json(double)> certificate;  // at an epsilon
};

std::optional<Proof> by_largest_loss(Direction direction, const Releases& phases) {
  if (direction == Direction::kRemove) return std::nullopt;
  const double largest = largest_loss_of_adding(phases);
  if (!(largest < kLargest)) return std::nullopt;
  return Proof{largest, [](double) { return json{{"method", "largest-loss"}}; }};
}

// Chernoff's bound at the best of some c.
std::optional<Proof> by_chernoff(Direction direction, const Releases& phases, double log_delta) {
  const auto saddle = saddle_of_delta(direction, phases, log_delta);
  if (!saddle) return std::nullopt;
  double best_c = 0;
  double least = std::numeric_limits<double>::infinity();
  const auto try_at = [&](double c) {
    double work = 0;
    for (const ComposedRelease& phase : phases) work += receipt::mesh_nodes(direction, phase, c, 0, 0);
    if (!(work <= kMostMeshNodes)) return;
    const RealMoment moment = composed_moment(direction, phases, c);
    const double epsilon = (moment.log_m + moment.error + log_kappa(c) - log_delta) / c;
    if (!(epsilon < least)) return;
    least = epsilon;
    best_c = c;
  };
  for (const double share : {0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0}) try_at(saddle->c * share);
  if (!(least < kLargest)) return std::nullopt;
  for (const double width : {0.08, 0.04, 0.02, 0.01})
    for (const double c : {best_c * (1 - width), best_c * (1 + width)}) try_at(c);
  const RealMoment moment = composed_moment(direction, phases, best_c);
  const double c = best_c;
  const double k = moment.log_m + moment.error;
  least = std::max(0.0, least * (1 + 1e-12));
  return Proof{least, [c, k](double epsilon) {
                 return json{{"method", "chernoff"},
                             {"intercept", c},
                             {"bound", std::exp(log_chernoff(c, k, epsilon)) * (1 + 1e-13)}};
               }};
}

// The least epsilon at which the line's numbers add up to at most delta, near the one that it was made for.
std::optional<double> least_epsilon(const Line& line, double around, double delta, double reach) {
  double high = around;
  double move = std::max(1e-13 * around, 1e-15);
  for (; !(line.bound(high) <= delta); high = around + move) {
    move *= 4;
    if (move > reach) return std::nullopt;
  }
  double low = std::max(0.0, high - move);
  if (high == around) {
    for (move = 1e-13 * around + 1e-15; low > 0 && line.bound(low) <= delta; low = std::max(0.0, around - move)) {
      move *= 4;
      if (move > reach) break;
    }
  }
  for (int i = 0; i < 60 && high - low > 1e-14 * high; ++i) {
    const double middle = low + (high - low) / 2;
    (line.bound(middle) <= delta ? high : low) = middle;
  }
  return high;
}

std::optional<Proof> by_line(Direction direction, const Releases& phases, double delta, double around,
                             double smoothing) {
  Line::Request request{.epsilon = around, .log_delta = std::log(delta), .smoothing = smoothing};
  if (smoothing > 0) {
    request.digits = kSmoothedDigits;
    request.most_work /= 2;
  }
  auto line = Line::make(direction, phases, request);
  if (!line) return std::nullopt;
  const double reach = 0.05 * around + 0.1;
  if (line->bound(around) <= delta && smoothing == 0)
    return Proof{around, [line](double epsilon) { return line->certificate(epsilon); }};
  const auto epsilon = least_epsilon(*line, around, delta, reach);
  if (!epsilon) return std::nullopt;
  return Proof{*epsilon, [line](double at) { return line->certificate(at); }};
}

// The first that proves the stated epsilon; otherwise the one that proves the least.
std::optional<Proof> proof_of(Direction direction, const Releases& phases, double delta, double stated) {
  std::optional<Proof> best;
  const auto better = [&](std::optional<Proof> found) {
    if (found && (!best || found->epsilon < best->epsilon)) best = std::move(found);
    return best && best->epsilon <= stated;
  };
  if (better(by_largest_loss(direction, phases))) return best;
  const auto chernoff = by_chernoff(direction, phases, std::log(delta));
  if (better(chernoff)) return best;
  const bool lines = !beyond_resolution(phases) && phases.size() <= 400;
  if (!lines) return best;
  for (const double smoothing : {0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3}) {
    const bool proven = better(by_line(direction, phases, delta, stated, smoothing));
    // More smoothing proves less.
    if (proven || (best && best->epsilon <= stated * 1.001 + 1e-6)) return best;
  }
  return best;
}

}  // namespace

json make_receipt(const LedgerContents& ledger, Delta delta, Epsilon stated) {
  if (const int64_t groups = sampling_groups(ledger.header); groups > 1)
    throw std::invalid_argument(
        "a receipt must be of a run whose releases are all charged to every unit, got one with " +
        std::to_string(groups) + " groups of units (--noise-bands or --noise-chain)");
  if (ledger.header.contains("noise_blt"))
    throw std::invalid_argument(
        "a receipt must be of a run whose steps draw from all units, got one with noise buffers (--noise-blt)");
  const receipt::Phases phases = receipt::phases_of(ledger, kMostPhases);
  std::vector<Proof> proofs;
  double epsilon = 0;
  for (const Direction direction : kDirections) {
    if (phases.composed.empty()) {  // nothing was released
      proofs.push_back({0, [](double) { return json{{"method", "largest-loss"}}; }});
      continue;
    }
    auto proof = proof_of(direction, phases.composed, delta.value(), stated.value());
    if (!proof) throw std::invalid_argument("a receipt must have a finite bound to prove, none was found");
    epsilon = std::max(epsilon, proof->epsilon);
    proofs.push_back(*std::move(proof));
  }
  // Every proof holds for larger epsilons too.
  if (epsilon <= stated.value()) epsilon = std::max(epsilon, stated.value());
  json found = {{"schema", kReceiptSchema},         {"library_version", kLibraryVersion},
                {"ledger_head", ledger.head},       {"adjacency", ledger.header.at("adjacency")},
                {"delta", delta.value()},           {"epsilon", epsilon},
                {"report_epsilon", stated.value()}, {"events", phases.events},
                {"phases", phases.listed}};
  found["remove"] = proofs[0].certificate(epsilon);
  found["add"] = proofs[1].certificate(epsilon);
  return found;
}

}  // namespace ghostshard::accountant
