// The cross term of a table used as embedding and as head; declared in linear_norm.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/unit_norms.h"
#include "kernels/linear_norm.h"

namespace ghostshard::kernels {

void tied_cross_term(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                     const at::Tensor& h, const at::Tensor& b, const Segments& head_segments, NormParts& parts) {
  if (device::runs_on_device(e)) {
    return on_device::tied_cross_term(ids, e, embedding_segments, h, b, head_segments, parts);
  }
  constexpr const char* op = "tied_cross_term";
  require_matrix(op, "e", e);
  require_rows(op, "e", e, embedding_segments);
  require_row_pair(op, "h", h, "b", b, head_segments);
  require(e.size(1) == h.size(1) && e.scalar_type() == h.scalar_type(), op,
          ": e and h must have the columns of one table and one dtype; got ", e.sizes(), " ", e.scalar_type(), " and ",
          h.sizes(), " ", h.scalar_type());
  require_ids(op, ids, embedding_segments, b.size(1));
  require(embedding_segments.units() == head_segments.units(), op,
          ": embedding and head must have the same units; got ", embedding_segments.units(), " and ",
          head_segments.units());
  require_parts(parts, head_segments.units());

  const std::vector<double> e_norms = row_norms_rounded_up(e);
  const std::vector<double> h_norms = row_norms_rounded_up(h);
  std::vector<double> b_norms;  // needed by units that are recomputed only
  const auto rows_of = [](const at::Tensor& x, const std::vector<double>& norms, const Segments& segments, int64_t u) {
    return UnitRows{.x = x.narrow(0, segments.begin(u), segments.length(u)),
                    .norms = std::span(norms).subspan(static_cast<size_t>(segments.begin(u)),
                                                      static_cast<size_t>(segments.length(u)))};
  };
  double* value = parts.value.mutable_data_ptr<double>();
  double* value_error = parts.value_error.mutable_data_ptr<double>();
  double* sum_error = parts.sum_error.mutable_data_ptr<double>();
  for (int64_t u = 0; u < head_segments.units(); ++u) {
    const int64_t lookups = embedding_segments.length(u), tokens = head_segments.length(u);
    // The rows of both uses are summed into one buffer: one sum of all these terms.
    const int64_t terms = lookups + tokens + 3;
    sum_error[u] = std::max(sum_error[u], e.scalar_type() == at::kFloat ? gamma_float32(terms) : gamma_float64(terms));
    if (lookups == 0 || tokens == 0) {
      continue;
    }
    const UnitRows unit_e = rows_of(e, e_norms, embedding_segments, u);
    if (std::all_of(unit_e.norms.begin(), unit_e.norms.end(), [](double norm) { return norm == 0; })) {
      continue;  // the term is exactly zero
    }
    const UnitRows unit_h = rows_of(h, h_norms, head_segments, u);
    const at::Tensor unit_ids = ids.narrow(0, embedding_segments.begin(u), lookups);
    const at::Tensor unit_b = b.narrow(0, head_segments.begin(u), tokens);
    const auto add_cross = [&](BoundedSum& sum, at::ScalarType arithmetic) {
      const BoundedSum cross = gathered_product_sum(unit_ids, unit_e, unit_h, unit_b, arithmetic);
      sum.value += 2 * cross.value;
      sum.error += 2 * cross.error;
    };
    BoundedSum total{.value = value[u], .error = value_error[u]};
    if (std::isfinite(total.value) && std::isfinite(total.error)) {
      add_cross(total, e.scalar_type());
      if (!certain_enough(total) && e.scalar_type() != at::kDouble) {
        if (b_norms.empty()) {
          b_norms = row_norms_rounded_up(b);
        }
        const std::span<const int64_t> id(unit_ids.const_data_ptr<int64_t>(), static_cast<size_t>(lookups));
        total = lookup_norm(id, unit_e.x).squared;
        const BoundedSum head = gram_product_sum(unit_h, rows_of(b, b_norms, head_segments, u), at::kDouble);
        total.value += head.value;
        total.error += head.error;
        add_cross(total, at::kDouble);
      }
    }
    value[u] = total.value;
    value_error[u] = total.error;
  }
}

}  // namespace ghostshard::kernels
