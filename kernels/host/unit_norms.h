// The norm of one unit, by one way, in one arithmetic: shared by gram_norm, embedding_norm and the tied pair.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/norm_parts/bound.h"

namespace ghostshard::kernels {

struct BoundedSum {
  double value = 0;
  double error = 0;  // bound on |value − exact|
};
inline bool certain_enough(const BoundedSum& sum) { return certain_enough(sum.value, sum.error); }

// Euclidean norms of the rows of x [N,d], rounded up. Rows may be apart, here and below (host/checks.h).
std::vector<double> row_norms_rounded_up(const at::Tensor& x);

// The lower triangle of x·xᵀ [T,T] in float32, for rows of `columns`: |computed − exact| ≤
// gamma_float32(terms)·|x_s|·|x_t|, underflow apart.
struct KnownGram {
  const float* products = nullptr;
  int64_t columns = 0, terms = 0;
};

// One unit's rows and their norms. If the Gram matrix is known, only float64 arithmetic reads the rows.
struct UnitRows {
  at::Tensor x;  // [T,d]
  std::span<const double> norms;
  KnownGram gram = {};
};

// The most rows whose Gram matrix is one tile.
constexpr int64_t kOneTileRows = 128;

// The norms of float32 rows, at most kOneTileRows, and their Gram matrix, from one read of columns that come in pieces.
class RowsInPieces {
 public:
  explicit RowsInPieces(int64_t rows) : rows_(rows) {}
  // The next columns [rows, some].
  void add(const at::Tensor& columns);
  // Of all columns so far. Norms are rounded up.
  std::vector<double> norms() const;
  KnownGram gram() const { return {.products = gram_.get(), .columns = columns_, .terms = terms_}; }

 private:
  int64_t rows_;
  std::vector<double> squares_;
  std::unique_ptr<float[]> gram_;
  int64_t columns_ = 0, terms_ = 0, square_terms_ = 0;
};

// A unit's rows, measured. For float32 rows, few enough that their Gram matrix is one tile, that matrix comes from the
// same read, if it is asked for: rows as long as a vocabulary do not stay in the cache for a second one.
class MeasuredRows {
 public:
  MeasuredRows(const at::Tensor& x, bool with_gram);
  const std::vector<double>& norms() const { return norms_; }
  UnitRows rows() const { return {.x = x_, .norms = norms_, .gram = whole_ ? whole_->gram() : KnownGram{}}; }

 private:
  at::Tensor x_;
  std::vector<double> norms_;
  std::optional<RowsInPieces> whole_;
};

// sum over s,t of (a_s·a_t)(g_s·g_t) for the rows of one unit, T ≥ 1. The products are formed in `arithmetic`
// (float32 or float64, not narrower than the rows), their sums in float64.
BoundedSum gram_product_sum(const UnitRows& a, const UnitRows& g, at::ScalarType arithmetic);

// sum over s,t of m_st·⟨e_s,h_t⟩ with m_st = b[t, ids[s]]; ids [S], e [S,d], h [T,d], b [T,V]; S, T ≥ 1.
BoundedSum gathered_product_sum(const at::Tensor& ids, const UnitRows& e, const UnitRows& h, const at::Tensor& b,
                                at::ScalarType arithmetic);

// ‖G‖² of one unit's table lookup in float64; mass is the sum of |e_s|.
struct LookupNorm {
  BoundedSum squared;
  double mass = 0;
  int64_t longest = 0;  // the most rows that share one id
};
LookupNorm lookup_norm(std::span<const int64_t> ids, const at::Tensor& e);

}  // namespace ghostshard::kernels
