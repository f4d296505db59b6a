// An optimizer's rule for slices on a device, computed in host memory (arXiv:2101.06840 puts the optimizer there too).
// Gradient and weights are copied to the host piece by piece, the rule updates the weights and the optimizer's own
// slices, which live there, and the weights are copied back. The next piece is copied while this one is computed;
// staging is two pieces of page-locked memory, allocated once.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace ghostshard::fsdp {

// The slices of one update, and as many of each of the optimizer's own states. All float32.
struct UpdateSlices {
  std::vector<at::Tensor> weights, gradients;
  std::vector<std::vector<at::Tensor>> states;
};
using UpdateRule = std::function<void(const UpdateSlices&)>;

class HostUpdate {
 public:
  // piece: elements copied and updated at a time, >= 1.
  explicit HostUpdate(at::Device device, int64_t piece = int64_t{1} << 22);
  // weights and gradients on the device, states on the CPU. Weights are up to date on the device's current stream.
  void apply(const UpdateSlices& slices, const UpdateRule& rule);

 private:
  struct Staging {
    at::Tensor weights, gradient;  // [piece]
  };
  Staging& staging(int64_t turn);

  at::Device device_;
  int64_t piece_;
  Staging staging_[2];
};

}  // namespace ghostshard::fsdp
