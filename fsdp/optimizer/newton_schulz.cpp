#include "fsdp/optimizer/newton_schulz.h"

namespace ghostshard::fsdp {

at::Tensor orthogonalised(const at::Tensor& matrix, int64_t iterations) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  constexpr double kNoNorm = 1e-30;  // of a matrix that is zero for all purposes
  const bool upright = matrix.size(-2) > matrix.size(-1);
  at::Tensor x = upright ? matrix.transpose(-2, -1) : matrix;
  x = x / x.square().sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true).sqrt_().clamp_min_(kNoNorm);
  for (int64_t i = 0; i < iterations; ++i) {
    const at::Tensor gram = x.matmul(x.transpose(-2, -1));
    const at::Tensor polynomial = gram.matmul(gram).mul_(kC).add_(gram.mul(kB));
    x = polynomial.matmul(x).add_(x.mul(kA));
  }
  return upright ? x.transpose(-2, -1) : x;
}

}  // namespace ghostshard::fsdp
