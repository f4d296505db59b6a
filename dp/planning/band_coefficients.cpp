#include "dp/planning/band_coefficients.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "dp/planning/bfgs.h"

namespace ghostshard::dp {
namespace {

using Numbers = std::vector<double>;

void check(const BandWorkload& workload, int64_t bands) {
  const auto steps = static_cast<int64_t>(workload.rates.size());
  if (!(bands >= 1 && bands <= steps)) {
    throw std::invalid_argument("noise bands must be from 1 to the number of steps (" + std::to_string(steps) +
                                "), got " + std::to_string(bands));
  }
  check_workload(workload);
}

// The first coefficients of series / (1 + Σ a_k x^k), as many as the series has.
Numbers divided(Numbers series, const Numbers& a) {
  for (size_t i = 0; i < series.size(); ++i) {
    for (size_t k = 1; k <= std::min(i, a.size()); ++k) series[i] -= a[k - 1] * series[i - k];
  }
  return series;
}

// The rest of the noise of one step in later steps' momentum: 1 / ((1 + Σ a_k x^k)·(1 − βx)).
Numbers response(const Numbers& a, double momentum, size_t steps) {
  Numbers powers(steps, 1);
  for (size_t i = 1; i < steps; ++i) powers[i] = powers[i - 1] * momentum;
  return divided(std::move(powers), a);
}

using Shares = std::vector<WorkloadShare>;

// The mean of the logarithm of F: its slopes do not depend on the rates' scale.
BandError log_error(const Numbers& a, const Shares& shares) {
  BandError mean{0, Numbers(a.size(), 0)};
  double whole = 0;
  for (const WorkloadShare& each : shares) whole += each.share;
  for (const WorkloadShare& each : shares) {
    const BandError found = band_error_and_slopes(a, each.workload);
    const double part = each.share / whole;
    mean.error += part * std::log(found.error);
    for (size_t k = 0; k < a.size(); ++k) mean.slopes[k] += part * (found.slopes[k] / found.error);
  }
  return mean;
}

}  // namespace

BandWorkload thinned(const BandWorkload& workload, int64_t most) {
  const auto steps = static_cast<int64_t>(workload.rates.size());
  if (steps <= most) return workload;
  BandWorkload thin{.rates = {}, .momentum = workload.momentum};
  for (int64_t s = 0; s < most; ++s) {
    thin.rates.push_back(workload.rates[static_cast<size_t>((2 * s + 1) * steps / (2 * most))]);
  }
  return thin;
}

void check_workload(const BandWorkload& workload) {
  if (workload.rates.empty()) throw std::invalid_argument("a workload must have at least one rate, got none");
  if (!(workload.momentum >= 0 && workload.momentum < 1)) {
    throw std::invalid_argument("a workload's momentum must be in [0, 1), got " + std::to_string(workload.momentum));
  }
  for (const double rate : workload.rates) {
    if (!(rate > 0 && std::isfinite(rate))) {
      throw std::invalid_argument("a workload's rates must be finite and > 0, got " + std::to_string(rate));
    }
  }
}

void check_shares(const std::vector<WorkloadShare>& shares) {
  if (shares.empty()) throw std::invalid_argument("noise needs a workload to serve, got none");
  for (const auto& [workload, share] : shares) {
    check_workload(workload);
    if (!(share > 0 && std::isfinite(share))) {
      throw std::invalid_argument("a workload's share must be finite and > 0, got " + std::to_string(share));
    }
    if (workload.rates.size() != shares.front().workload.rates.size()) {
      throw std::invalid_argument("workloads of one run must have equally many rates, got " +
                                  std::to_string(workload.rates.size()) + " and " +
                                  std::to_string(shares.front().workload.rates.size()));
    }
  }
}

// With h the response, V_{t,j} = Σ_{i=j}^{t} η_i·h_{i−j} and S = (1/T)·Σ V²: F = (1 + ‖a‖²)·S. Backwards from S:
// dS/dh_d = (2/T)·Σ_j η_{j+d}·Σ_{t≥j+d} V_{t,j}, and dh/da_k = −x^k·h/(1 + Σ a_k x^k).
BandError band_error_and_slopes(const std::vector<double>& a, const BandWorkload& workload) {
  check(workload, static_cast<int64_t>(a.size()) + 1);
  const Numbers& rates = workload.rates;
  const size_t steps = rates.size();
  const Numbers h = response(a, workload.momentum, steps);
  Numbers by_h(steps, 0), moved(steps, 0);
  double sum = 0;
  for (size_t j = 0; j < steps; ++j) {
    double whole = 0;
    for (size_t t = j; t < steps; ++t) {
      whole += rates[t] * h[t - j];
      moved[t] = whole;
      sum += whole * whole;
    }
    double later = 0;
    for (size_t t = steps; t-- > j;) {
      later += moved[t];
      by_h[t - j] += rates[t] * later;
    }
  }
  const double mean = sum / static_cast<double>(steps),
               squares = 1 + std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const Numbers twice = divided(h, a);
  BandError found{squares * mean, Numbers(a.size(), 0)};
  for (size_t k = 1; k <= a.size(); ++k) {
    double slope = 0;
    for (size_t d = k; d < steps; ++d) slope += by_h[d] * twice[d - k];
    found.slopes[k - 1] = 2 * mean * a[k - 1] - squares * slope * 2 / static_cast<double>(steps);
  }
  return found;
}

std::vector<double> optimal_band_ratios(int64_t bands, const std::vector<WorkloadShare>& shares) {
  check_shares(shares);
  check(shares.front().workload, bands);
  Numbers start;
  double coefficient = 1;
  for (int64_t k = 1; k < bands; ++k) {
    coefficient *= static_cast<double>(2 * k - 1) / static_cast<double>(2 * k);
    start.push_back(coefficient);
  }
  Shares thin;
  for (const WorkloadShare& each : shares) thin.push_back({thinned(each.workload, kMostPlannedSteps), each.share});
  if (bands > static_cast<int64_t>(thin.front().workload.rates.size())) {
    throw std::invalid_argument("noise bands must be at most " + std::to_string(kMostPlannedSteps) + ", got " +
                                std::to_string(bands));
  }
  if (bands == 1) return start;
  return by_bfgs(std::move(start), [&](const Numbers& a) {
    const BandError mean = log_error(a, thin);
    return Sloped{mean.error, mean.slopes};
  });
}

}  // namespace ghostshard::dp
