#include "kernels/linear_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/checks.h"
#include "kernels/unit_norms.h"
#include "kernels/vectorised.h"

namespace ghostshard::kernels {
namespace {

void set_norm_of_held(const at::Tensor& held, int64_t unit, int64_t elements, NormParts& parts) {
  AT_DISPATCH_FLOATING_TYPES(held.scalar_type(), "per_unit_gradient", [&] {
    const double squared = sum_of_squares(held.const_data_ptr<scalar_t>() + unit * elements, elements);
    parts.value.mutable_data_ptr<double>()[unit] = squared;
    parts.value_error.mutable_data_ptr<double>()[unit] = gamma_float64(elements + 8) * squared;
  });
}

double float_sum_error(at::ScalarType type, int64_t terms) {
  return type == at::kFloat ? gamma_float32(terms) : gamma_float64(terms);
}

}  // namespace

void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, NormParts& parts) {
  constexpr const char* op = "per_unit_gradient";
  require_row_pair(op, "a", a, "g", g, segments);
  const int64_t units = segments.units(), inputs = a.size(1), outputs = g.size(1);
  require_dense_cpu(op, "out", out);
  require(out.dim() == 3 && out.size(0) == units && out.size(1) == outputs && out.size(2) == inputs &&
              out.scalar_type() == a.scalar_type(),
          op, ": out must be [", units, ", ", outputs, ", ", inputs, "] of ", a.scalar_type(), "; got ", out.sizes(),
          " of ", out.scalar_type());
  require_parts(parts, units);
  for (int64_t u = 0; u < units; ++u) {
    at::Tensor unit_out = out.select(0, u);
    if (segments.length(u) > 0 && inputs > 0 && outputs > 0) {
      const at::Tensor unit_a = a.slice(0, segments.begin(u), segments.end(u));
      const at::Tensor unit_g = g.slice(0, segments.begin(u), segments.end(u));
      if (accumulate) {
        at::addmm_out(unit_out, unit_out, unit_g.t(), unit_a);
      } else {
        at::mm_out(unit_out, unit_g.t(), unit_a);
      }
    } else if (!accumulate) {
      unit_out.zero_();
    }
    // At once, while the values are still in the cache.
    set_norm_of_held(out, u, outputs * inputs, parts);
  }
}

void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts) {
  constexpr const char* op = "gram_norm";
  require_row_pair(op, "a", a, "g", g, segments);
  require_parts(parts, segments.units());
  const std::vector<double> a_norms = row_norms_rounded_up(a);
  const std::vector<double> g_norms = row_norms_rounded_up(g);
  double* value = parts.value.mutable_data_ptr<double>();
  double* value_error = parts.value_error.mutable_data_ptr<double>();
  double* mass = parts.mass.mutable_data_ptr<double>();
  double* sum_error = parts.sum_error.mutable_data_ptr<double>();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const int64_t begin = segments.begin(u), length = segments.length(u);
    const auto rows_of = [&](const at::Tensor& x, const std::vector<double>& norms) {
      return UnitRows{.x = x.narrow(0, begin, length),
                      .norms = std::span(norms).subspan(static_cast<size_t>(begin), static_cast<size_t>(length))};
    };
    const UnitRows unit_a = rows_of(a, a_norms), unit_g = rows_of(g, g_norms);
    double unit_mass = 0;
    for (size_t t = 0; t < unit_a.norms.size(); ++t) {
      unit_mass += unit_a.norms[t] * unit_g.norms[t];
    }
    unit_mass *= 1 + gamma_float64(length + 2);
    mass[u] += unit_mass;
    // c·g rounds once, the product with a once for each row, and adding it to what is there already once more.
    sum_error[u] = std::max(sum_error[u], float_sum_error(a.scalar_type(), length + 2));
    if (unit_mass == 0) {
      continue;  // every term is exactly zero
    }
    if (!std::isfinite(unit_mass)) {
      value[u] += unit_mass;
      continue;
    }
    BoundedSum norm = gram_product_sum(unit_a, unit_g, a.scalar_type());
    if (!certain_enough(norm) && a.scalar_type() != at::kDouble) {
      norm = gram_product_sum(unit_a, unit_g, at::kDouble);
    }
    value[u] += norm.value;
    value_error[u] += norm.error;
  }
}

}  // namespace ghostshard::kernels
