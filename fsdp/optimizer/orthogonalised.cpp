#include "fsdp/optimizer/orthogonalised.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/stack.h>

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

// Of symmetric positive definite matrices, whose lower triangles are read. By halves: with the blocks A, B (below A)
// and D, W = B·A⁻¹ and S = D − W·Bᵀ, the inverse has the blocks A⁻¹ + Wᵀ·S⁻¹·W, −S⁻¹·W and S⁻¹. So most of it is
// products, which libraries compute two to three times as fast as Cholesky decompositions. none if a block has no such
// decomposition.
std::optional<at::Tensor> inverse_of(const at::Tensor& symmetric) {
  constexpr int64_t kBlock = 64;  // rows that one decomposition takes
  const int64_t rows = symmetric.size(-1), upper = rows / 2, lower = rows - upper;
  if (rows <= kBlock) {
    const auto [factor, failed] = at::linalg_cholesky_ex(symmetric);
    if (failed.any().item<bool>()) return std::nullopt;
    return at::cholesky_inverse(factor);
  }
  const std::optional<at::Tensor> first = inverse_of(symmetric.narrow(-2, 0, upper).narrow(-1, 0, upper));
  if (!first) return std::nullopt;
  const at::Tensor below = symmetric.narrow(-2, upper, lower), beside = below.narrow(-1, 0, upper);
  const at::Tensor product = beside.matmul(*first);
  const std::optional<at::Tensor> second =
      inverse_of(below.narrow(-1, upper, lower) - product.matmul(beside.transpose(-2, -1)));
  if (!second) return std::nullopt;
  const at::Tensor across = second->matmul(product).neg_(), taken = product.transpose(-2, -1).matmul(across);
  return at::cat({at::cat({*first - taken, across.transpose(-2, -1)}, -1), at::cat({across, *second}, -1)}, -2);
}

// M of the lower triangle of R, for an x of this type; none if R + c·t·I is not positive definite.
std::optional<at::Tensor> factor_of(const at::Tensor& gram, at::ScalarType type) {
  constexpr double kNoNorm = 1e-10;  // of zeros: others, whose trace is 1, have 1/√m
  const at::Tensor diagonal = sum_of_squares(gram.diagonal(0, -2, -1).unsqueeze(-1));
  const at::Tensor norm = sum_of_squares(gram).mul_(2).sub_(diagonal).sqrt_().clamp_min_(kNoNorm);
  at::Tensor sum = at::zeros_like(gram, gram.options().dtype(type));
  for (const auto& [weight, pole, is_small] : kTerms) {
    at::Tensor shifted = gram.to(is_small ? gram.scalar_type() : type, /*non_blocking=*/false, /*copy=*/true);
    shifted.diagonal(0, -2, -1).add_(norm.squeeze(-1), pole);
    std::optional<at::Tensor> inverse = inverse_of(shifted);
    if (!inverse) return std::nullopt;
    sum.add_(inverse->mul_(norm.mul(weight).to(inverse->scalar_type())));
  }
  sum.diagonal(0, -2, -1).add_(1);
  return sum.mul_(norm.rsqrt().mul_(kScale).to(type));
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& matrix, double scale) {
  constexpr double kNoNorm = 1e-30;  // of a matrix that is zero for all purposes
  constexpr int64_t kAlone = 256;    // rows from which on one matrix fills the cache
  const int64_t rows = matrix.size(-2), columns = matrix.size(-1);
  if (matrix.dim() == 3 && matrix.is_cpu() && std::min(rows, columns) >= kAlone) {
    std::vector<at::Tensor> each = matrix.unbind();
    for (at::Tensor& one : each) one = orthogonalised(one, scale);
    return at::stack(each);
  }
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
