#include "dp/optimizers/weight_rounding.h"

#include "kernels/rounded_weights.h"

namespace ghostshard::dp {
namespace {

class KeyedRounding final : public fsdp::WeightRounding {
 public:
  void round(const at::Tensor& values, uint32_t parameter, int64_t step, int64_t first,
             const at::Tensor& stored) const override {
    kernels::round_weights(values, parameter, step, static_cast<uint64_t>(first), stored);
  }
};

}  // namespace

std::shared_ptr<const fsdp::WeightRounding> keyed_weight_rounding() { return std::make_shared<KeyedRounding>(); }

}  // namespace ghostshard::dp
