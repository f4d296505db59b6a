#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/plain_number.h"
#include "accountant/report/gaussian_dp.h"
#include "accountant/report/parts.h"

namespace ghostshard::accountant::report_parts {
namespace {

using nlohmann::json;

using Curve = std::vector<std::pair<double, double>>;  // epsilon (upper), delta

// Two a decade from 1e-15 to 1e-1, a few above, and the reported one; if that lies outside, two decades around it as
// well.
std::set<double> curve_deltas(Delta reported) {
  std::set<double> deltas = {reported.value(), 0.2, 0.5, 0.8};  // the large ones bound tests with a few false alarms
  for (int decade = -15; decade <= -1; ++decade) {
    const double power = number_of_plain("1e" + std::to_string(decade));  // pow(10, -5) is not the double 1e-5
    deltas.insert(power);
    if (decade < -1) deltas.insert(3 * power);
  }
  if (reported.value() < 1e-15)
    for (const double factor : {0.01, 0.1, 10.0, 100.0}) deltas.insert(std::max(reported.value() * factor, 1e-300));
  return deltas;
}

constexpr int kSpendingPoints = 30;

// For a chart beside the claim's: one point in two decades shows the shape.
json thin_curve(const Accountant& engine, Delta delta, const EpsilonBound& reported) {
  json curve = json::array();
  double least = std::numeric_limits<double>::infinity();
  for (const double at : std::set<double>{1e-15, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 1e-2, delta.value()}) {
    const double upper = at == delta.value() ? reported.upper : engine.epsilon(Delta(at), Effort::kQuick).upper;
    least = std::min(least, upper);  // what holds at a smaller delta holds at this one
    curve.push_back({{"delta", at}, {"upper", finite_or_null(least)}});
  }
  return curve;
}

}  // namespace

json privacy_curve(const Accountant& engine, Delta delta, const EpsilonBound& reported) {
  json points = json::array();
  Curve curve;
  double least = std::numeric_limits<double>::infinity();
  for (const double at : curve_deltas(delta)) {
    EpsilonBound bound = at == delta.value() ? reported : engine.epsilon(Delta(at), Effort::kQuick);
    if (at != delta.value() && least < bound.upper) {  // what holds at a smaller delta holds at this one
      bound.upper = least;
      bound.estimate = std::min(bound.estimate, least);
      bound.lower = std::min(bound.lower, least);
    }
    least = bound.upper;
    points.push_back({{"delta", at}, {"epsilon", to_json(bound)}});
    if (std::isfinite(bound.upper)) curve.emplace_back(bound.upper, at);
  }
  json rates = json::array();
  for (const double false_positives : {0.1, 0.01, 0.001})
    rates.push_back({{"false_positive_rate", false_positives},
                     {"true_positive_rate_at_most", membership_bound(curve, false_positives)}});
  json gdp = {{"mu", finite_or_null(pessimistic_gdp(curve))},
              {"meaning",
               "no test tells neighbouring data sets apart better than N(0,1) from N(mu,1), for every delta "
               "from the smallest of this curve on; rounded towards more mu"}};
  gdp["holds_for_delta_from"] = curve.empty() ? json() : points.front().at("delta");
  return {{"points", points}, {"membership_test_bounds", rates}, {"gaussian_dp", gdp}};
}

json spending(const Spent& spent, const std::string& accountant, Adjacency adjacency, Delta delta,
              const EpsilonBound& reported) {
  int64_t total = 0;
  for (const Run& run : spent.sequence) total += run.releases;
  json points = json::array({{{"releases", 0}, {"epsilon", 0.0}}});
  auto engine = make_accountant(accountant, adjacency);
  const int64_t parts = std::min<int64_t>(kSpendingPoints, total);
  auto run = spent.sequence.begin();
  int64_t charged = 0, taken_of_run = 0;
  for (int64_t part = 1; part <= parts; ++part) {
    // Closer together at the start, where epsilon climbs fastest: at shares (part/parts)².
    const double share = static_cast<double>(part) / static_cast<double>(parts);
    const int64_t until =
        part == parts
            ? total
            : std::max(charged + 1, static_cast<int64_t>(std::floor(share * share * static_cast<double>(total))));
    if (until > total) break;
    while (charged < until) {
      const int64_t now = std::min(until - charged, run->releases - taken_of_run);
      if (run->charged) engine->compose(spent.events[run->event].first, now);
      charged += now;
      taken_of_run += now;
      if (taken_of_run == run->releases) {
        ++run;
        taken_of_run = 0;
      }
    }
    // What holds for the whole run holds for its beginning.
    const double upper =
        charged == total ? reported.upper : std::min(reported.upper, engine->epsilon(delta, Effort::kQuick).upper);
    points.push_back({{"releases", charged}, {"epsilon", finite_or_null(upper)}});
    if (charged == total) break;
  }
  return {{"delta", delta.value()}, {"points", points}};
}

json group_guarantee(const json& privacy_curve, const json& units_per_person, Delta delta) {
  const double k = units_per_person.get<double>();
  json person = {{"delta", delta.value()}, {"epsilon_upper", nullptr}};
  for (const json& point : privacy_curve.at("points")) {
    if (point.at("epsilon").at("upper").is_null()) continue;
    const double epsilon = point.at("epsilon").at("upper"), at = point.at("delta");
    const double group_delta = epsilon > 0 ? at * std::expm1(k * epsilon) / std::expm1(epsilon) : at * k;
    if (!(group_delta <= delta.value())) continue;  // even if it overflows
    if (person.at("epsilon_upper").is_null() || k * epsilon < person.at("epsilon_upper").get<double>())
      person["epsilon_upper"] = k * epsilon;
  }
  return person;
}

json accountants(const Spent& spent, Adjacency adjacency, Delta delta, const EpsilonBound& reported) {
  json all = json::object();
  for (const std::string name : {"contour", "prv", "rdp"}) {
    try {
      const auto engine = account(spent, name, adjacency);
      const bool is_claim = name == reported.accountant;
      const EpsilonBound bound = is_claim ? reported : engine->epsilon(delta);
      all[name] = {{"delta", delta.value()},
                   {"epsilon", to_json(bound)},
                   {"direction", bound.direction},
                   {"detail", bound.detail}};
      if (!is_claim) all[name]["curve"] = thin_curve(*engine, delta, bound);
    } catch (const std::invalid_argument& error) {
      all[name] = {{"refused", error.what()}};
    }
  }
  return all;
}

}  // namespace ghostshard::accountant::report_parts
