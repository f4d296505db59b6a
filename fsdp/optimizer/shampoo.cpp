#include <algorithm>

#include "fsdp/optimizer/elementwise.h"
#include "fsdp/optimizer/factors.h"
#include "fsdp/optimizer/tiled_optimizer.h"

namespace ghostshard::fsdp {
namespace {

// Of each tile [n, 1, 1].
at::Tensor norm_of(const at::Tensor& tiles) {
  return tiles.square().sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true).sqrt_();
}

class Shampoo final : public TiledOptimizer {
 public:
  Shampoo(ShardedModel& model, const ShampooOptions& options, const Chosen& chosen)
      : TiledOptimizer(model, options, "shampoo", chosen), error_floor_(options.error_floor) {
    require(error_floor_ >= 0 && error_floor_ <= 1, "error_floor must be in [0, 1]", error_floor_);
  }
  std::string rule() const override { return "shampoo"; }

 private:
  at::Tensor step_of(TileStack& stack, const at::Tensor& gradient) override {
    constexpr double kNoNorm = 1e-30;  // of a tile that is zero for all purposes
    const AdamWOptions& adamw = options().adamw;
    const int64_t rows = gradient.size(1), columns = gradient.size(2);
    stack.second.mul_(adamw.beta2).add_(gradient.square().mul_(1 - adamw.beta2));
    if (refreshes()) {
      stack.left_transform.copy_(root_of(stack.left, rows, columns));
      stack.right_transform.copy_(root_of(stack.right, columns, rows));
    }
    const at::Tensor momentum = stack.first.div(share_seen(adamw.beta1));
    const at::Tensor length =
        norm_of(momentum.div(stack.second.div(share_seen(adamw.beta2)).sqrt_().add_(adamw.epsilon)));
    const at::Tensor whitened = stack.left_transform.matmul(momentum).matmul(stack.right_transform);
    return whitened.mul(length.div(norm_of(whitened).clamp_min_(kNoNorm)));
  }

  at::Tensor root_of(const at::Tensor& factor, int64_t side, int64_t other) const {
    const ErrorSpectrum errors =
        error_spectrum(error_variance(), side, other, steps_that_count(options().factor_beta, steps()));
    const double least = std::max(error_floor_ * errors.mean, errors.upper - errors.mean);
    return inverse_fourth_root(without(factor.div(share_seen(options().factor_beta)), errors.mean), least);
  }

  double error_floor_;
};

}  // namespace

std::unique_ptr<Optimizer> make_shampoo(ShardedModel& model, const ShampooOptions& options, const Chosen& chosen) {
  return std::make_unique<Shampoo>(model, options, chosen);
}

}  // namespace ghostshard::fsdp
