#include "fsdp/optimizer/orthogonalised.h"

#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/linalg_cholesky_ex.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace ghostshard::fsdp {
namespace {

constexpr double kScale = 1.005026932199671;  // h
struct Term {
  double weight, pole;  // a_j, c_j
  bool is_small;        // the pole
};
constexpr Term kTerms[] = {{.weight = 0.007160781732628843, .pole = 1.0859059552656642e-05, .is_small = true},
                           {.weight = 0.1667085608339056, .pole = 0.006898374965843688, .is_small = false}};

// By rows first: no number of threads changes its order.
at::Tensor sum_of_squares(const at::Tensor& x) {
  return x.square().sum(-1, /*keepdim=*/true).sum(-2, /*keepdim=*/true);
}

// x·xᵀ, its lower triangle, in bands of rows.
at::Tensor gram_of(const at::Tensor& x) {
  constexpr int64_t kRows = 64;
  const int64_t rows = x.size(-2);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = rows;
  const at::Tensor gram = at::zeros(shape, x.options());
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min(kRows, rows - first), end = first + count;
    at::Tensor band = gram.narrow(-2, first, count).narrow(-1, 0, end);
    at::matmul_out(band, x.narrow(-2, first, count), x.narrow(-2, 0, end).transpose(-2, -1));
  }
  return gram.tril_();
}

// M of the lower triangle of R, for an x of this type; none if R + c·t·I has no Cholesky decomposition.
std::optional<at::Tensor> factor_of(const at::Tensor& gram, at::ScalarType type) {
  constexpr double kNoNorm = 1e-10;  // of zeros: others, whose trace is 1, have 1/√m
  const at::Tensor diagonal = sum_of_squares(gram.diagonal(0, -2, -1).unsqueeze(-1));
  const at::Tensor norm = sum_of_squares(gram).mul_(2).sub_(diagonal).sqrt_().clamp_min_(kNoNorm);
  at::Tensor sum = at::zeros_like(gram, gram.options().dtype(type));
  for (const auto& [weight, pole, is_small] : kTerms) {
    at::Tensor shifted = gram.to(is_small ? gram.scalar_type() : type, /*non_blocking=*/false, /*copy=*/true);
    shifted.diagonal(0, -2, -1).add_(norm.squeeze(-1), pole);
    const auto [lower, failed] = at::linalg_cholesky_ex(shifted);
    shifted.reset();
    if (failed.any().item<bool>()) return std::nullopt;
    // Symmetric, and by columns in memory.
    const at::Tensor inverse = at::cholesky_inverse(lower).transpose(-2, -1);
    sum.add_(inverse.mul_(norm.mul(weight).to(inverse.scalar_type())));
  }
  sum.diagonal(0, -2, -1).add_(1);
  return sum.mul_(norm.rsqrt().mul_(kScale).to(type));
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& matrix, double scale) {
  constexpr double kNoNorm = 1e-30;  // of a matrix that is zero for all purposes
  const int64_t rows = matrix.size(-2), columns = matrix.size(-1);
  const bool upright = rows > columns, is_long = std::max(rows, columns) >= 2 * std::min(rows, columns);
  at::Tensor x = upright ? matrix.transpose(-2, -1) : matrix;
  x = x / sum_of_squares(x).sqrt_().clamp_min_(kNoNorm);
  std::optional<at::Tensor> factor;
  if (is_long) factor = factor_of(gram_of(x), x.scalar_type());
  if (!factor) factor = factor_of(gram_of(x.to(at::kDouble)), x.scalar_type());
  if (!factor) return at::full_like(matrix, std::numeric_limits<double>::quiet_NaN());
  x = factor->mul_(scale).matmul(x);
  return upright ? x.transpose(-2, -1) : x;
}

}  // namespace ghostshard::fsdp
