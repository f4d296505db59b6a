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
};
constexpr Term kTerms[] = {{.weight = 0.007160781732628843, .pole = 1.0859059552656642e-05},
                           {.weight = 0.1667085608339056, .pole = 0.006898374965843688}};

// x·xᵀ, its lower triangle, in bands of rows.
at::Tensor gram_of(const at::Tensor& x) {
  constexpr int64_t kRows = 64;
  const int64_t rows = x.size(-2);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = rows;
  const at::Tensor gram = at::zeros(shape, x.options());
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min(kRows, rows - first), end = first + count;
    gram.narrow(-2, first, count)
        .narrow(-1, 0, end)
        .copy_(x.narrow(-2, first, count).matmul(x.narrow(-2, 0, end).transpose(-2, -1)));
  }
  return gram.tril_();
}

// M of the lower triangle of R; none if R + c·t·I has no Cholesky decomposition.
std::optional<at::Tensor> factor_of(const at::Tensor& gram) {
  constexpr double kNoNorm = 1e-10;  // of zeros: others, whose trace is 1, have 1/√m
  const at::Tensor squares = gram.square().sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true);
  const at::Tensor diagonal = gram.diagonal(0, -2, -1).square().sum(-1, /*keepdim=*/true).unsqueeze(-1);
  const at::Tensor norm = squares.mul(2).sub_(diagonal).sqrt_().clamp_min_(kNoNorm);
  at::Tensor sum = at::zeros_like(gram);
  for (const auto& [weight, pole] : kTerms) {
    at::Tensor shifted = gram.clone();
    shifted.diagonal(0, -2, -1).add_(norm.squeeze(-1), pole);
    const auto [lower, failed] = at::linalg_cholesky_ex(shifted);
    shifted.reset();
    if (failed.any().item<bool>()) return std::nullopt;
    sum.add_(at::cholesky_inverse(lower).mul_(norm.mul(weight)));
  }
  sum.diagonal(0, -2, -1).add_(1);
  return sum.mul_(norm.rsqrt().mul_(kScale));
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& matrix) {
  constexpr double kNoNorm = 1e-30;  // of a matrix that is zero for all purposes
  const int64_t rows = matrix.size(-2), columns = matrix.size(-1);
  const bool upright = rows > columns, is_long = std::max(rows, columns) >= 2 * std::min(rows, columns);
  at::Tensor x = upright ? matrix.transpose(-2, -1) : matrix;
  x = x / x.square().sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true).sqrt_().clamp_min_(kNoNorm);
  std::optional<at::Tensor> factor;
  if (is_long) factor = factor_of(gram_of(x));
  if (!factor) factor = factor_of(gram_of(x.to(at::kDouble)));
  if (!factor) return at::full_like(matrix, std::numeric_limits<double>::quiet_NaN());
  x = factor->to(x.scalar_type()).matmul(x);
  return upright ? x.transpose(-2, -1) : x;
}

}  // namespace ghostshard::fsdp
