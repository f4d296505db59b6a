#include "kernels/affine_norm.h"

#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {
namespace {

// The sum of a whole unit is formed in float64 and rounded once, so `out` is as good as its dtype allows. The norm is
// that of the rounded values.
template <typename Scalar, typename AddRow>
void sum_units(const Segments& segments, int64_t columns, at::Tensor& out, bool accumulate, NormParts& parts,
               const AddRow& add_row) {
  std::vector<double> sum(static_cast<size_t>(columns));
  double* value = parts.value.mutable_data_ptr<double>();
  double* value_error = parts.value_error.mutable_data_ptr<double>();
  // 8 more than the products: the products of float64 inputs round too, and the bound is in terms of the computed sum.
  const double relative_error = gamma_float64(columns + 8);
  for (int64_t u = 0; u < segments.units(); ++u) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t t = segments.begin(u); t < segments.end(u); ++t) {
      add_row(sum.data(), t);
    }
    Scalar* row = out.mutable_data_ptr<Scalar>() + u * columns;
    for (int64_t j = 0; j < columns; ++j) {
      const double before = accumulate ? static_cast<double>(row[j]) : 0.0;
      row[j] = static_cast<Scalar>(before + sum[static_cast<size_t>(j)]);
    }
    value[u] = sum_of_squares(row, columns);
    value_error[u] = relative_error * value[u];
  }
}

}  // namespace

void per_unit_row_sum(const at::Tensor& g, const Segments& segments, at::Tensor out, bool accumulate,
                      NormParts& parts) {
  if (device::runs_on_device(g)) {
    return on_device::per_unit_row_sum(g, segments, out, accumulate, parts);
  }
  constexpr const char* op = "per_unit_row_sum";
  require_matrix(op, "g", g);
  require_rows(op, "g", g, segments);
  require_shape(op, "out", out, {segments.units(), g.size(1)}, g.scalar_type());
  require_parts(parts, segments.units());
  AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), op, [&] {
    const int64_t columns = g.size(1);
    const scalar_t* rows = g.const_data_ptr<scalar_t>();
    sum_units<scalar_t>(segments, columns, out, accumulate, parts,
                        [=](double* sum, int64_t t) { add_to(sum, rows + t * columns, columns); });
  });
}

void per_unit_product_sum(const at::Tensor& g, const at::Tensor& x_hat, const Segments& segments, at::Tensor out,
                          bool accumulate, NormParts& parts) {
  if (device::runs_on_device(g)) {
    return on_device::per_unit_product_sum(g, x_hat, segments, out, accumulate, parts);
  }
  constexpr const char* op = "per_unit_product_sum";
  require_matrix(op, "g", g);
  require_matrix(op, "x_hat", x_hat);
  require_row_pair(op, "g", g, "x_hat", x_hat, segments);
  require(g.size(1) == x_hat.size(1), op, ": g and x_hat must have one shape; got ", g.sizes(), " and ", x_hat.sizes());
  require_shape(op, "out", out, {segments.units(), g.size(1)}, g.scalar_type());
  require_parts(parts, segments.units());
  AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), op, [&] {
    const int64_t columns = g.size(1);
    const scalar_t* rows = g.const_data_ptr<scalar_t>();
    const scalar_t* scales = x_hat.const_data_ptr<scalar_t>();
    sum_units<scalar_t>(segments, columns, out, accumulate, parts, [=](double* sum, int64_t t) {
      add_product_to(sum, rows + t * columns, scales + t * columns, columns);
    });
  });
}

}  // namespace ghostshard::kernels
