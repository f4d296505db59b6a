#include "kernels/tied_pair.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/unit_norms.h"

namespace ghostshard::kernels {
namespace {

double roundoff_of_sum(at::ScalarType type, int64_t terms) {
  return type == at::kDouble ? gamma_float64(terms) : gamma_float32(terms);
}

// The rows of one matrix and their norms, unit by unit. The norms are found when they are first asked for.
class RowsByUnit {
 public:
  RowsByUnit(at::Tensor x, const Segments& segments) : x_(std::move(x)), segments_(segments) {}
  at::Tensor rows(int64_t unit) const { return x_.narrow(0, segments_.begin(unit), segments_.length(unit)); }
  UnitRows with_norms(int64_t unit) {
    if (norms_.empty()) norms_ = row_norms_rounded_up(x_);
    const auto first = static_cast<size_t>(segments_.begin(unit)), count = static_cast<size_t>(segments_.length(unit));
    return {.x = rows(unit), .norms = std::span(norms_).subspan(first, count)};
  }

 private:
  at::Tensor x_;
  const Segments& segments_;
  std::vector<double> norms_;
};

struct TiedPairRows {
  RowsByUnit ids, e, h, b;
};

void add_cross_term(BoundedSum& total, TiedPairRows& pair, int64_t unit, at::ScalarType arithmetic) {
  const BoundedSum cross = gathered_product_sum(pair.ids.rows(unit), pair.e.with_norms(unit), pair.h.with_norms(unit),
                                                pair.b.rows(unit), arithmetic);
  total.value += 2 * cross.value;
  total.error += 2 * cross.error;
}

// All three terms of one unit in float64.
BoundedSum recomputed(TiedPairRows& pair, int64_t unit) {
  const at::Tensor ids = pair.ids.rows(unit);
  BoundedSum total =
      lookup_norm({ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.size(0))}, pair.e.rows(unit)).squared;
  const BoundedSum head = gram_product_sum(pair.h.with_norms(unit), pair.b.with_norms(unit), at::kDouble);
  total.value += head.value;
  total.error += head.error;
  add_cross_term(total, pair, unit, at::kDouble);
  return total;
}

// The norm of both uses' sum, from the sum of their squared norms.
BoundedSum with_cross_term(BoundedSum total, TiedPairRows& pair, int64_t unit) {
  const UnitRows e = pair.e.with_norms(unit);
  const bool is_zero = std::all_of(e.norms.begin(), e.norms.end(), [](double norm) { return norm == 0; });
  if (is_zero || !std::isfinite(total.value) || !std::isfinite(total.error)) {
    return total;
  }
  add_cross_term(total, pair, unit, e.x.scalar_type());
  if (certain_enough(total) || e.x.scalar_type() == at::kDouble) {
    return total;
  }
  return recomputed(pair, unit);
}

void require_tied_pair(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                       const at::Tensor& h, const at::Tensor& b, const Segments& head_segments,
                       const NormParts& parts) {
  constexpr const char* op = "tied_pair_cross_term";
  require_matrix(op, "e", e);
  require_rows(op, "e", e, embedding_segments);
  require_matrix(op, "h", h);
  require_row_pair(op, "h", h, "b", b, head_segments);
  require_one_table(op, e, embedding_segments, h, head_segments);
  require_ids(op, ids, embedding_segments, b.size(1));
  require_parts(parts, head_segments.units());
}

}  // namespace

void tied_pair_cross_term(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                          const at::Tensor& h, const at::Tensor& b, const Segments& head_segments, NormParts& parts) {
  if (device::runs_on_device(e)) {
    return on_device::tied_pair_cross_term(ids, e, embedding_segments, h, b, head_segments, parts);
  }
  require_tied_pair(ids, e, embedding_segments, h, b, head_segments, parts);
  TiedPairRows pair{
      .ids{ids, embedding_segments}, .e{e, embedding_segments}, .h{h, head_segments}, .b{b, head_segments}};
  double* value = parts.value.mutable_data_ptr<double>();
  double* value_error = parts.value_error.mutable_data_ptr<double>();
  double* sum_error = parts.sum_error.mutable_data_ptr<double>();
  for (int64_t u = 0; u < head_segments.units(); ++u) {
    const int64_t lookups = embedding_segments.length(u), tokens = head_segments.length(u);
    // The rows of both uses are summed into one buffer: one sum of all these terms.
    sum_error[u] = std::max(sum_error[u], roundoff_of_sum(e.scalar_type(), lookups + tokens + 3));
    if (lookups == 0 || tokens == 0) {
      continue;
    }
    const BoundedSum total = with_cross_term({.value = value[u], .error = value_error[u]}, pair, u);
    value_error[u] = error_of_tied(value[u] + value_error[u], total.value, total.error);
    value[u] = total.value;
  }
}

void count_tied_norms(const at::Tensor& apart, NormParts& parts) {
  const at::Tensor least = apart.mul(2 / (kTiedNorms * kTiedNorms)).sub_(parts.value);
  parts.value_error.copy_(at::maximum(parts.value_error, least));  // not-a-number stays so
}

void raise_tied_pair_sum_error(at::ScalarType type, const Segments& tokens, const Segments& lookups, NormParts& parts) {
  const bool on_device = device::runs_on_device(parts.value);
  std::vector<double> errors;
  for (int64_t u = 0; u < tokens.units(); ++u) {
    const int64_t rows = tokens.length(u);
    const int64_t of_head = on_device ? on_device::roundings_of_scaled_sum(type, rows) : rows + 2;
    errors.push_back(roundoff_of_sum(type, of_head + lookups.length(u) + 2));
  }
  parts.sum_error.copy_(at::maximum(parts.sum_error, at::tensor(errors, at::kDouble).to(parts.sum_error.device())));
}

}  // namespace ghostshard::kernels
