#include "fsdp/optimizer/factors.h"
#include "fsdp/optimizer/tiled_optimizer.h"

namespace ghostshard::fsdp {
namespace {

// 0 for directions along `extent` that hold nothing but rounding, 1 for others: where a tile's gradients do not span
// all directions, Adam would make of both moments' rounding a step as long as any.
at::Tensor seen_along(const at::Tensor& second, int64_t extent) {
  constexpr double kRounding = 1e-6;  // of the largest direction's, squared: 2^-24 for each of some additions
  const at::Tensor sums = second.sum(extent, /*keepdim=*/true);
  return sums.gt(sums.amax(at::IntArrayRef{-2, -1}, /*keepdim=*/true).mul(kRounding));
}

class Soap final : public TiledOptimizer {
 public:
  Soap(ShardedModel& model, const TiledOptions& options, const Chosen& chosen)
      : TiledOptimizer(model, options, "soap", chosen) {}
  std::string rule() const override { return "soap"; }

 private:
  at::Tensor step_of(TileStack& stack, const at::Tensor& gradient) override {
    const AdamWOptions& adamw = options().adamw;
    const int64_t rows = gradient.size(1), columns = gradient.size(2);
    const auto turned = [&](const at::Tensor& tiles) {
      return stack.left_transform.transpose(-2, -1).matmul(tiles).matmul(stack.right_transform);
    };
    const auto remember = [&] {
      stack.second.mul_(adamw.beta2).add_(turned(gradient).square_().mul_(1 - adamw.beta2));
    };
    at::Tensor step;
    if (steps() == 1) {
      step = gradient.div(gradient.abs().add_(adamw.epsilon));
    } else {
      remember();
      step = turned(stack.first)
                 .div_(share_seen(adamw.beta1))
                 .div_(stack.second.div(share_seen(adamw.beta2)).sqrt_().add_(adamw.epsilon))
                 .mul_(seen_along(stack.second, -1))
                 .mul_(seen_along(stack.second, -2));
      step = stack.left_transform.matmul(step).matmul(stack.right_transform.transpose(-2, -1));
    }
    if (refreshes()) {
      stack.left_transform.copy_(basis_of(stack.left, stack.left_transform, rows, columns));
      stack.right_transform.copy_(basis_of(stack.right, stack.right_transform, columns, rows));
    }
    if (steps() == 1) remember();
    return step;
  }

  at::Tensor basis_of(const at::Tensor& factor, const at::Tensor& before, int64_t side, int64_t other) const {
    if (steps() == 1) return eigenbasis(factor);
    const double beta = options().factor_beta;
    const ErrorSpectrum errors = error_spectrum(error_variance(), side, other, steps_that_count(beta, steps()));
    return next_eigenbasis(without(factor.div(share_seen(beta)), errors.lower), before);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_soap(ShardedModel& model, const TiledOptions& options, const Chosen& chosen) {
  return std::make_unique<Soap>(model, options, chosen);
}

}  // namespace ghostshard::fsdp
