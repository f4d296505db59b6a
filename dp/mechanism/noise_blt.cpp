#include "dp/mechanism/noise_blt.h"

#include <algorithm>

#include "dp/mechanism/noise_bands.h"

namespace ghostshard::dp {
namespace {

std::vector<double> exact(const std::vector<float>& numbers) { return {numbers.begin(), numbers.end()}; }

}  // namespace

accountant::BltRows NoiseBlt::rows() const { return {exact(outputs), exact(decays), separation, steps}; }

double NoiseBlt::variance() const {
  if (!is_on()) return 1;
  std::vector<double> buffers(outputs.size(), 0);
  double squares = 0;
  for (int64_t i = 0; i < steps; ++i) {
    double noise = i == 0 ? 1 : 0;
    for (size_t j = 0; j < buffers.size(); ++j) noise -= static_cast<double>(outputs[j]) * buffers[j];
    for (size_t j = 0; j < buffers.size(); ++j) buffers[j] = static_cast<double>(decays[j]) * buffers[j] + noise;
    squares += noise * noise;
  }
  const double norm = rows().norm();
  return norm * norm * squares;
}

void NoiseBlt::check() const {
  if (is_on() || !decays.empty()) (void)rows();
}

NoiseBuffers::NoiseBuffers(const fsdp::GroupedParameters& model, const NoiseBlt& blt, bool on_host)
    : blt_(blt), on_host_(on_host) {
  blt.check();
  if (model.mesh().replica() != 0) return;  // it adds no noise
  for (size_t j = 0; j < blt.outputs.size(); ++j) buffers_.emplace_back(model, on_host);
}

void NoiseBuffers::correlate(const fsdp::FlatGroup& group, const at::Tensor& noise) {
  if (buffers_.empty()) return;
  const int64_t chunk = noise_at_a_time(noise);
  const at::Tensor product = at::empty({std::min(chunk, noise.numel())}, noise.options());
  for (int64_t first = 0; first < noise.numel(); first += chunk) {
    const int64_t count = std::min(chunk, noise.numel() - first);
    const at::Tensor part = noise.narrow(0, first, count);
    const at::Tensor scaled = product.narrow(0, 0, count);
    // Product and sum apart: a fused one would round otherwise where a kernel's vectors end.
    for (size_t j = 0; j < buffers_.size() && !empty_; ++j) {
      scaled_noise(scaled, buffers_[j].shard(group).narrow(0, first, count), blt_.outputs[j], on_host_);
      part.sub_(scaled);
    }
    for (size_t j = 0; j < buffers_.size(); ++j) {
      const at::Tensor kept = buffers_[j].shard(group).narrow(0, first, count);
      if (empty_) {
        kept.copy_(part);
      } else if (on_host_) {
        scaled_noise(scaled, kept, blt_.decays[j], true);
        kept.copy_(scaled.add_(part));
      } else {
        kept.mul_(at::scalar_tensor(blt_.decays[j])).add_(part);
      }
    }
  }
}

}  // namespace ghostshard::dp
