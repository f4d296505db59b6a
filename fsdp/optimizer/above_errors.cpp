#include "fsdp/optimizer/above_errors.h"

#include <ATen/ops/linalg_svd.h>

#include <algorithm>
#include <cmath>

namespace ghostshard::fsdp {

at::Tensor orthogonalised_above(const at::Tensor& matrices, double variance, bool corrected) {
  const auto p = static_cast<double>(matrices.size(-2)), d = static_cast<double>(matrices.size(-1));
  const auto [u, values, v] = at::linalg_svd(matrices, /*full_matrices=*/false);
  const at::Tensor above = values.gt(std::sqrt(variance) * (std::sqrt(p) + std::sqrt(d) + 2));
  at::Tensor lengths = above.to(values.scalar_type());
  if (corrected) {
    const at::Tensor s = values.where(above, at::ones_like(values));  // no quotients by what is left out
    const at::Tensor pairs = (s.unsqueeze(-1) + values.unsqueeze(-2)).pow(-2).sum(-1) - s.mul(2).pow(-2);
    const at::Tensor bias = (pairs + s.pow(-2).mul(std::abs(d - p) / 2)).mul(variance);
    lengths = lengths.mul(bias.add(1).clamp_max(2));
  }
  return u.mul(lengths.unsqueeze(-2)).matmul(v);
}

}  // namespace ghostshard::fsdp
