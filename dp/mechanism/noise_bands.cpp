#include "dp/mechanism/noise_bands.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace ghostshard::dp {
namespace {

constexpr size_t kMostRatios = 1023;
constexpr float kLargestRatio = 2;

}  // namespace

double NoiseBands::norm() const {
  double squares = 1;
  for (const float ratio : ratios) squares += static_cast<double>(ratio) * static_cast<double>(ratio);
  // Products of floats are exact in double; each addition and the root round by at most 2^-53 of the result.
  const double slack = static_cast<double>(ratios.size() + 4) * std::numeric_limits<double>::epsilon();
  return std::sqrt(squares) * (1 + (ratios.empty() ? 0 : slack));
}

double NoiseBands::variance(int64_t steps) const {
  // x_t = Σ h_i·z_{t-i}, from h_0 = 1 and h_i = -Σ_k a_k·h_{i-k}.
  std::vector<double> inverse = {1};
  double squares = 1;
  const auto bands = static_cast<int64_t>(ratios.size());
  for (int64_t i = 1; i < (ratios.empty() ? 1 : steps); ++i) {
    double next = 0;
    for (int64_t k = 1; k <= std::min(i, bands); ++k) {
      next -= static_cast<double>(ratios[static_cast<size_t>(k - 1)]) * inverse[static_cast<size_t>(i - k)];
    }
    inverse.push_back(next);
    squares += next * next;
  }
  return norm() * norm() * squares;
}

void NoiseBands::check() const {
  if (ratios.size() > kMostRatios) {
    throw std::invalid_argument("noise bands must be at most " + std::to_string(kMostRatios + 1) + ", got " +
                                std::to_string(count()));
  }
  for (const float ratio : ratios) {
    if (!(std::abs(ratio) <= kLargestRatio)) {
      throw std::invalid_argument("each ratio of noise bands must lie between -2 and 2, got " + std::to_string(ratio));
    }
  }
}

void scaled_noise(const at::Tensor& product, const at::Tensor& kept, float factor, bool on_host) {
  if (on_host) {
    product.copy_(kept).mul_(at::scalar_tensor(factor));
  } else {
    at::Tensor out = product;
    at::mul_out(out, kept, at::scalar_tensor(factor));
  }
}

NoiseHistory::NoiseHistory(const fsdp::GroupedParameters& model, const NoiseBands& bands, bool on_host)
    : bands_(bands), on_host_(on_host) {
  bands.check();
  if (model.mesh().replica() != 0) return;  // it adds no noise
  for (size_t k = 0; k < bands.ratios.size(); ++k) kept_.emplace_back(model, on_host);
}

void NoiseHistory::begin_step(bool follows) {
  if (kept_.empty()) return;
  const auto size = static_cast<int64_t>(kept_.size());
  known_ = follows ? std::min(known_ + 1, size) : 0;
  place_ = (place_ + 1) % size;
}

const fsdp::ShardBuffers& NoiseHistory::past(int64_t steps) const {
  const auto size = static_cast<int64_t>(kept_.size());
  return kept_[static_cast<size_t>((place_ + size - steps) % size)];
}

void NoiseHistory::correlate(const fsdp::FlatGroup& group, const at::Tensor& noise) {
  if (kept_.empty()) return;
  const int64_t chunk = noise_at_a_time(noise);
  // The step under way has the place of the oldest, which is read before it is overwritten.
  const at::Tensor kept = past(0).shard(group);
  const at::Tensor product = at::empty({std::min(chunk, noise.numel())}, noise.options());
  for (int64_t first = 0; first < noise.numel(); first += chunk) {
    const int64_t count = std::min(chunk, noise.numel() - first);
    const at::Tensor part = noise.narrow(0, first, count);
    const at::Tensor scaled = product.narrow(0, 0, count);
    for (int64_t k = 1; k <= known_; ++k) {
      // Product and difference apart: a fused one would round otherwise where a kernel's vectors end.
      scaled_noise(scaled, past(k).shard(group).narrow(0, first, count), bands_.ratios[static_cast<size_t>(k - 1)],
                   on_host_);
      part.sub_(scaled);
    }
    kept.narrow(0, first, count).copy_(part);
  }
}

}  // namespace ghostshard::dp
