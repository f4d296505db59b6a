// While one lives, PyTorch's products of float32 matrices on the CPU are computed in float32.
//
// torch.set_float32_matmul_precision("medium") and torch.backends.mkldnn.matmul.fp32_precision let them round their
// factors to 16 bits, where the processor has units for that. Layers may compute so, since their rows are recorded as
// they came out. Norms and clipped sums may not: their bounds are those of float32 roundings.
#pragma once

#include <memory>

namespace ghostshard::kernels {

class Float32Products {
 public:
  Float32Products();

 private:
  std::unique_ptr<void, void (*)(void*)> former_;  // PyTorch's setting, which its end puts back; null: it was float32
};

}  // namespace ghostshard::kernels
