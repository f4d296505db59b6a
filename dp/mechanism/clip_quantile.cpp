#include "dp/mechanism/clip_quantile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace ghostshard::dp {
namespace {

constexpr double kCountsPerBatch = 20;  // σ_b = B/20, arXiv:1905.03871 section 3.1
constexpr double kReach = 1000;

std::string number(double value) { return nlohmann::json(value).dump(); }

void require(bool holds, const std::string& rule, double value) {
  if (!holds) throw std::invalid_argument(rule + ", got " + number(value));
}

}  // namespace

ClipQuantile ClipQuantile::around(accountant::ClipNorm start, double expected_batch) {
  return {.count_noise = accountant::NoiseMultiplier(expected_batch / kCountsPerBatch),
          .least = accountant::ClipNorm(start.value() / kReach),
          .most = accountant::ClipNorm(start.value() * kReach)};
}

void ClipQuantile::check(accountant::ClipNorm start) const {
  require(target > 0 && target < 1, "the quantile that the clip norm follows must lie strictly between 0 and 1",
          target);
  require(rate > 0 && std::isfinite(rate), "the clip norm's learning rate must be finite and > 0", rate);
  if (!(least <= start && start <= most)) {
    throw std::invalid_argument("the clip norm to start with must lie within its limits, from " +
                                number(least.value()) + " to " + number(most.value()) + ", got " +
                                number(start.value()));
  }
}

accountant::NoiseMultiplier ClipQuantile::gradient_noise(accountant::NoiseMultiplier whole) const {
  const double deviations = 1 / whole.value(), count = 1 / (2 * count_noise.value());
  if (!(count < deviations)) {
    throw std::invalid_argument("the noise of the count must be more than half the noise multiplier of " +
                                number(whole.value()) + ", otherwise none is left for gradients; got " +
                                number(count_noise.value()));
  }
  // The accountant puts both together again, and each of the few roundings on the way is at most 2^-52 of the result.
  constexpr double kMargin = 0x1p-45;
  return accountant::NoiseMultiplier(
      (1 + kMargin * (deviations * deviations) / ((deviations - count) * (deviations + count))) /
      std::sqrt((deviations - count) * (deviations + count)));
}

accountant::ClipNorm ClipQuantile::next(accountant::ClipNorm now, double share) const {
  const double moved = now.value() * std::exp(-rate * (share - target));
  return accountant::ClipNorm(std::clamp(moved, least.value(), most.value()));
}

nlohmann::json to_json(const ClipQuantile& quantile) {
  return {{"target", quantile.target},
          {"rate", quantile.rate},
          {"count_noise", quantile.count_noise.value()},
          {"least", quantile.least.value()},
          {"most", quantile.most.value()}};
}

at::Tensor centred_count(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm) {
  const at::Tensor below = squared_norms.le(clip_norm.value() * clip_norm.value());
  const at::Tensor half = below.to(at::kDouble) - 0.5;
  return half.masked_fill(squared_norms.eq(0), 0).sum().reshape({1});
}

double count_noise(const kernels::ChaChaKey& key, accountant::NoiseMultiplier sigma) {
  std::array<float, 1> z{};
  kernels::add_gaussian(key, 0, 0, 1.0F, z);
  return std::rint(2 * sigma.value() * static_cast<double>(z[0])) / 2;
}

}  // namespace ghostshard::dp
