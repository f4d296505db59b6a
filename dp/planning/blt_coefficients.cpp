#include "dp/planning/blt_coefficients.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <utility>

#include "dp/planning/bfgs.h"

namespace ghostshard::dp {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kMostBuffers = 16;
constexpr double kLargestDecay = 0.9999;

void check(const BltCoefficients& blt, int64_t separation) {
  if (blt.outputs.empty() || blt.outputs.size() != blt.decays.size()) {
    throw std::invalid_argument("noise buffers must have as many outputs as decays, got " +
                                std::to_string(blt.outputs.size()) + " and " + std::to_string(blt.decays.size()));
  }
  if (!(separation >= 1)) {
    throw std::invalid_argument("steps of one unit must be at least 1 apart, got " + std::to_string(separation));
  }
}

// c_1 … c_{T−1}.
Numbers coefficients_of(const BltCoefficients& blt, size_t steps) {
  Numbers coefficients(steps - 1, 0);
  for (size_t j = 0; j < blt.outputs.size(); ++j) {
    double term = blt.outputs[j];
    for (double& coefficient : coefficients) {
      coefficient += term;
      term *= blt.decays[j];
    }
  }
  return coefficients;
}

// s² and its derivatives by c_1 … c_{T−1}: ρ_r = c_r + ρ_{r−b}, and ds²/dc_k = 2·(ρ_k + ρ_{k+b} + …).
Sloped sensitivity_of(const Numbers& coefficients, size_t apart) {
  const size_t steps = coefficients.size() + 1;
  Numbers rows(steps);
  double squares = 0;
  for (size_t r = 0; r < steps; ++r) {
    rows[r] = (r == 0 ? 1 : coefficients[r - 1]) + (r < apart ? 0 : rows[r - apart]);
    squares += rows[r] * rows[r];
  }
  for (size_t r = steps; r-- > 0;) {
    if (r + apart < steps) rows[r] += rows[r + apart];
  }
  Sloped found{squares, Numbers(coefficients.size())};
  for (size_t k = 1; k < steps; ++k) found.slopes[k - 1] = 2 * rows[k];
  return found;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double logit(double y) { return std::log(y / (1 - y)); }

// Any arguments as outputs, then decays.
BltCoefficients from_arguments(const Numbers& arguments) {
  const size_t buffers = arguments.size() / 2;
  BltCoefficients blt;
  for (size_t j = 0; j < buffers; ++j) {
    blt.outputs.push_back(sigmoid(arguments[j]));
    blt.decays.push_back(kLargestDecay * sigmoid(arguments[buffers + j]));
  }
  return blt;
}

// 1/√(πi) = (1/π)·∫ λ^(1/2)·e^(−iλ) d(log λ), with d nodes from 1/T to 1.
Numbers start_of(int64_t buffers, double steps) {
  Numbers outputs, decays;
  const double width = std::log(std::max(steps, 2.0)) / static_cast<double>(buffers);
  for (int64_t j = 0; j < buffers; ++j) {
    const double rate = std::exp(-width * (static_cast<double>(j) + 0.5));
    outputs.push_back(logit(std::clamp(std::sqrt(rate) * width / std::numbers::pi, 1e-6, 0.9)));
    decays.push_back(logit(std::clamp(std::exp(-rate) / kLargestDecay, 1e-6, 1 - 1e-6)));
  }
  outputs.insert(outputs.end(), decays.begin(), decays.end());
  return outputs;
}

Sloped log_error(const Numbers& arguments, int64_t separation, const std::vector<WorkloadShare>& shares) {
  const BltCoefficients blt = from_arguments(arguments);
  const size_t buffers = blt.outputs.size();
  double whole = 0;
  for (const WorkloadShare& each : shares) whole += each.share;
  Sloped mean{0, Numbers(arguments.size(), 0)};
  for (const WorkloadShare& each : shares) {
    const BltError found = blt_error_and_slopes(blt, separation, each.workload);
    mean.value += each.share / whole * std::log(found.error);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const double ratio = i < buffers ? blt.outputs[i] : blt.decays[i - buffers] / kLargestDecay;
      const double by_argument = ratio * (1 - ratio) * (i < buffers ? 1 : kLargestDecay);
      mean.slopes[i] += each.share / whole * found.slopes[i] / found.error * by_argument;
    }
  }
  return mean;
}

}  // namespace

BltError blt_error_and_slopes(const BltCoefficients& blt, int64_t separation, const BandWorkload& workload) {
  check(blt, separation);
  check_workload(workload);
  const size_t steps = workload.rates.size(), buffers = blt.outputs.size();
  const Numbers coefficients = coefficients_of(blt, steps);
  // Of as many bands as steps, less what belongs to their own norm: the mean of ‖(A·R⁻¹)_t‖².
  const BandError banded = band_error_and_slopes(coefficients, workload);
  double own = 1;
  for (const double coefficient : coefficients) own += coefficient * coefficient;
  const double mean = banded.error / own;
  const Sloped sensitivity = sensitivity_of(coefficients, static_cast<size_t>(separation));
  BltError found{sensitivity.value * mean, Numbers(2 * buffers, 0)};
  for (size_t j = 0; j < buffers; ++j) {
    double power = 1, before = 0;  // θ^(k−1), (k−1)·θ^(k−2)
    for (size_t k = 0; k < coefficients.size(); ++k) {
      const double of_mean = (banded.slopes[k] - 2 * mean * coefficients[k]) / own;
      const double slope = sensitivity.slopes[k] * mean + sensitivity.value * of_mean;
      found.slopes[j] += slope * power;
      found.slopes[buffers + j] += slope * blt.outputs[j] * before;
      before = before * blt.decays[j] + power;
      power *= blt.decays[j];
    }
  }
  return found;
}

BltCoefficients optimal_blt(int64_t buffers, int64_t separation, const std::vector<WorkloadShare>& shares) {
  check_shares(shares);
  if (!(buffers >= 1 && buffers <= kMostBuffers)) {
    throw std::invalid_argument("noise buffers must be from 1 to " + std::to_string(kMostBuffers) + ", got " +
                                std::to_string(buffers));
  }
  std::vector<WorkloadShare> thin;
  for (const WorkloadShare& each : shares) thin.push_back({thinned(each.workload, kMostPlannedSteps), each.share});
  const auto steps = static_cast<double>(thin.front().workload.rates.size());
  return from_arguments(by_bfgs(start_of(buffers, steps),
                                [&](const Numbers& arguments) { return log_error(arguments, separation, thin); }));
}

}  // namespace ghostshard::dp
