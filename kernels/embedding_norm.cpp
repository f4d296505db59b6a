#include "kernels/embedding_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/unit_norms.h"
#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {
namespace {

std::span<const int64_t> unit_ids(const at::Tensor& ids, const Segments& segments, int64_t unit) {
  return {ids.const_data_ptr<int64_t>() + segments.begin(unit), static_cast<size_t>(segments.length(unit))};
}

void require_lookup(const char* op, const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                    int64_t table_rows) {
  require_matrix(op, "e", e);
  require_rows(op, "e", e, segments);
  require_ids(op, ids, segments, table_rows);
}

// The rows of one unit, those of one id side by side in their order.
std::vector<int64_t> order_by_id(std::span<const int64_t> ids) {
  std::vector<int64_t> order(ids.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [ids](int64_t s, int64_t t) {
    const int64_t left = ids[static_cast<size_t>(s)], right = ids[static_cast<size_t>(t)];
    return left != right ? left < right : s < t;
  });
  return order;
}

template <typename Scalar>
LookupNorm lookup_norm_of(std::span<const int64_t> ids, const Scalar* e, int64_t columns) {
  LookupNorm norm;
  const auto rows = static_cast<int64_t>(ids.size());
  const std::vector<int64_t> order = order_by_id(ids);
  const auto id_at = [&](int64_t k) { return ids[static_cast<size_t>(order[static_cast<size_t>(k)])]; };
  std::vector<double> sum(static_cast<size_t>(columns));
  for (int64_t begin = 0; begin < rows;) {
    int64_t end = begin + 1;
    while (end < rows && id_at(end) == id_at(begin)) {
      ++end;
    }
    if (end == begin + 1) {
      const double squared = sum_of_squares(e + order[static_cast<size_t>(begin)] * columns, columns);
      norm.squared.value += squared;
      norm.mass += std::sqrt(squared);
    } else {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t k = begin; k < end; ++k) {
        const Scalar* row = e + order[static_cast<size_t>(k)] * columns;
        add_to(sum.data(), row, columns);
        norm.mass += std::sqrt(sum_of_squares(row, columns));
      }
      norm.squared.value += sum_of_squares(sum.data(), columns);
    }
    norm.longest = std::max(norm.longest, end - begin);
    begin = end;
  }
  norm.mass *= 1 + gamma_float64(columns + rows + 8);
  // The sums by id err by gamma·(sum of absolute values), in norm at most gamma·mass; their squares and the sum of
  // these by gamma of its length, relative because every term is positive.
  const double sum_error = gamma_float64(norm.longest) * norm.mass;
  norm.squared.error = sum_error * (2 * std::sqrt(norm.squared.value) + 3 * sum_error) +
                       gamma_float64(columns + rows + 8) * norm.squared.value;
  return norm;
}

// table[id] += the sum of c·e over the unit's rows of that id. A unit's rows meet no others before they are summed:
// they may cancel (kernels/scaled_sum.h). e: the unit's first row.
template <typename Scalar>
void add_unit_lookups(std::span<const int64_t> ids, const Scalar* e, int64_t columns, Scalar factor, Scalar* table) {
  const std::vector<int64_t> order = order_by_id(ids);
  std::vector<Scalar> sum(static_cast<size_t>(columns));
  for (size_t begin = 0; begin < order.size();) {
    const int64_t id = ids[static_cast<size_t>(order[begin])];
    size_t end = begin + 1;
    while (end < order.size() && ids[static_cast<size_t>(order[end])] == id) ++end;
    if (end == begin + 1) {
      add_scaled_to(table + id * columns, factor, e + order[begin] * columns, columns);
    } else {
      std::fill(sum.begin(), sum.end(), Scalar{0});
      for (size_t k = begin; k < end; ++k) add_scaled_to(sum.data(), factor, e + order[k] * columns, columns);
      add_scaled_to(table + id * columns, Scalar{1}, sum.data(), columns);
    }
    begin = end;
  }
}

}  // namespace

LookupNorm lookup_norm(std::span<const int64_t> ids, const at::Tensor& e) {
  return e.scalar_type() == at::kFloat ? lookup_norm_of(ids, e.const_data_ptr<float>(), e.size(1))
                                       : lookup_norm_of(ids, e.const_data_ptr<double>(), e.size(1));
}

void embedding_norm(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t table_rows,
                    NormParts& parts) {
  if (device::runs_on_device(e)) {
    return on_device::embedding_norm(ids, e, segments, table_rows, parts);
  }
  constexpr const char* op = "embedding_norm";
  require_lookup(op, ids, e, segments, table_rows);
  require_parts(parts, segments.units());
  const bool in_float32 = e.scalar_type() == at::kFloat;
  for (int64_t u = 0; u < segments.units(); ++u) {
    const LookupNorm norm = lookup_norm(unit_ids(ids, segments, u), e.slice(0, segments.begin(u), segments.end(u)));
    parts.value.mutable_data_ptr<double>()[u] += norm.squared.value;
    parts.value_error.mutable_data_ptr<double>()[u] += norm.squared.error;
    parts.mass.mutable_data_ptr<double>()[u] += norm.mass;
    // One rounding for c·e, one for every addition to the same table row.
    const int64_t terms = norm.longest + 2;
    double& sum_error = parts.sum_error.mutable_data_ptr<double>()[u];
    sum_error = std::max(sum_error, in_float32 ? gamma_float32(terms) : gamma_float64(terms));
  }
}

void embedding_scaled_sum(const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                          const at::Tensor& factors, at::Tensor out) {
  if (device::runs_on_device(e)) {
    return on_device::embedding_scaled_sum(ids, e, segments, factors, out);
  }
  constexpr const char* op = "embedding_scaled_sum";
  require_matrix(op, "out", out);
  require_lookup(op, ids, e, segments, out.size(0));
  require(out.size(1) == e.size(1) && out.scalar_type() == e.scalar_type(), op, ": out must be [table rows, ",
          e.size(1), "] of ", e.scalar_type(), "; got ", out.sizes(), " of ", out.scalar_type());
  require_factors(op, factors, segments.units());
  AT_DISPATCH_FLOATING_TYPES(e.scalar_type(), op, [&] {
    const int64_t columns = e.size(1);
    const scalar_t* rows = e.const_data_ptr<scalar_t>();
    const float* factor = factors.const_data_ptr<float>();
    scalar_t* table = out.mutable_data_ptr<scalar_t>();
    for (int64_t u = 0; u < segments.units(); ++u) {
      if (factor[u] == 0) {
        continue;
      }
      add_unit_lookups(unit_ids(ids, segments, u), rows + segments.begin(u) * columns, columns,
                       static_cast<scalar_t>(factor[u]), table);
    }
  });
}

void embedding_into_held(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, at::Tensor held,
                         NormParts& parts) {
  if (device::runs_on_device(e)) {
    return on_device::embedding_into_held(ids, e, segments, held, parts);
  }
  constexpr const char* op = "embedding_into_held";
  require_held_table(op, held, segments, at::kCPU);
  require_lookup(op, ids, e, segments, held.size(1));
  require(held.size(2) == e.size(1) && held.scalar_type() == e.scalar_type(), op, ": held must have e's ", e.size(1),
          " columns and dtype ", e.scalar_type(), "; got ", held.sizes(), " of ", held.scalar_type());
  require_parts(parts, segments.units());
  AT_DISPATCH_FLOATING_TYPES(e.scalar_type(), op, [&] {
    const int64_t columns = e.size(1);
    const int64_t unit_elements = held.size(1) * columns;
    const int64_t* id = ids.const_data_ptr<int64_t>();
    const scalar_t* rows = e.const_data_ptr<scalar_t>();
    for (int64_t u = 0; u < segments.units(); ++u) {
      scalar_t* table = held.mutable_data_ptr<scalar_t>() + u * unit_elements;
      for (int64_t s = segments.begin(u); s < segments.end(u); ++s) {
        add_scaled_to(table + id[s] * columns, scalar_t{1}, rows + s * columns, columns);
      }
      const double squared = sum_of_squares(table, unit_elements);
      parts.value.mutable_data_ptr<double>()[u] = squared;
      parts.value_error.mutable_data_ptr<double>()[u] = gamma_float64(unit_elements + 8) * squared;
    }
  });
}

}  // namespace ghostshard::kernels
