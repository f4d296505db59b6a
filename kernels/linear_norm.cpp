#include "kernels/linear_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/float32_products.h"
#include "kernels/host/unit_norms.h"
#include "kernels/host/vectorised.h"
#include "kernels/norm_parts/bound.h"
#include "kernels/recording.h"

namespace ghostshard::kernels {
namespace {

// A unit's gradient is formed in panels of rows, and a panel's squares are summed at once, while it is in the cache.
// Smaller panels would stay in a smaller cache, but the products would lose more than that gains (measured).
constexpr int64_t kNormPanelElements = int64_t{768} * 768;
constexpr int64_t kLeastNormPanelRows = 256;
int64_t panel_rows(int64_t inputs) {
  return std::max<int64_t>(kLeastNormPanelRows, kNormPanelElements / std::max<int64_t>(1, inputs));
}

double sum_of_squares_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? sum_of_squares(x.const_data_ptr<float>(), x.numel())
                                       : sum_of_squares(x.const_data_ptr<double>(), x.numel());
}

double float_sum_error(at::ScalarType type, int64_t terms) {
  return type == at::kFloat ? gamma_float32(terms) : gamma_float64(terms);
}

}  // namespace

void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, NormParts& parts) {
  if (device::runs_on_device(a)) {
    return on_device::per_unit_gradient(a, g, segments, out, accumulate, parts);
  }
  constexpr const char* op = "per_unit_gradient";
  require_row_pair(op, "a", a, "g", g, segments);
  const int64_t units = segments.units(), inputs = a.size(1), outputs = g.size(1);
  require_shape(op, "out", out, {units, outputs, inputs}, a.scalar_type());
  require_parts(parts, units);
  const int64_t panel = panel_rows(inputs);
  const Float32Products in_float32;
  for (int64_t u = 0; u < units; ++u) {
    const at::Tensor unit_a = a.narrow(0, segments.begin(u), segments.length(u));
    const at::Tensor unit_g = g.narrow(0, segments.begin(u), segments.length(u));
    double squared = 0;
    for (int64_t top = 0; top < outputs; top += panel) {
      const int64_t height = std::min(panel, outputs - top);
      at::Tensor panel_out = out.select(0, u).narrow(0, top, height);
      if (unit_a.numel() > 0) {
        const at::Tensor panel_g = unit_g.narrow(1, top, height).t();
        if (accumulate) {
          at::addmm_out(panel_out, panel_out, panel_g, unit_a);
        } else {
          at::mm_out(panel_out, panel_g, unit_a);
        }
      } else if (!accumulate) {
        panel_out.zero_();
      }
      squared += sum_of_squares_of(panel_out);
    }
    parts.value.mutable_data_ptr<double>()[u] = squared;
    parts.value_error.mutable_data_ptr<double>()[u] = gamma_float64(outputs * inputs + 8) * squared;
  }
}

namespace {

struct UnitSum {
  double mass;
  double error;  // of the later sum, relative to the mass
};

using UnitNorm = BoundedSum (*)(const UnitRows& a, const UnitRows& g, const UnitSum& later);

BoundedSum unit_norm_by_gram(const UnitRows& a, const UnitRows& g, const UnitSum& /*later*/) {
  BoundedSum norm = gram_product_sum(a, g, a.x.scalar_type());
  if (!certain_enough(norm) && a.x.scalar_type() != at::kDouble) norm = gram_product_sum(a, g, at::kDouble);
  return norm;
}

BoundedSum unit_norm_by_panels(const UnitRows& a, const UnitRows& g, const UnitSum& later) {
  const int64_t inputs = a.x.size(1), outputs = g.x.size(1), height = std::min(outputs, panel_rows(inputs));
  const at::Tensor panel = at::empty({height, inputs}, a.x.options());
  const Float32Products in_float32;
  double squared = 0;
  for (int64_t top = 0; top < outputs; top += height) {
    at::Tensor rows = panel.narrow(0, 0, std::min(height, outputs - top));
    at::mm_out(rows, g.x.narrow(1, top, rows.size(0)).t(), a.x);
    squared += sum_of_squares_of(rows);
  }
  // The gradient squared here is as far from the exact one as the later sum will be.
  const double distance = later.error * later.mass;
  return {squared, gamma_float64(outputs * inputs + 8) * squared + distance_of_squares(squared, distance)};
}

// Works unit by unit: rows are measured and their Gram matrix formed from one read.
template <typename Choose>
void add_unit_norms(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts,
                    const Choose& choose) {
  double* value = parts.value.mutable_data_ptr<double>();
  double* value_error = parts.value_error.mutable_data_ptr<double>();
  double* mass = parts.mass.mutable_data_ptr<double>();
  double* sum_error = parts.sum_error.mutable_data_ptr<double>();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const int64_t begin = segments.begin(u), length = segments.length(u);
    const at::Tensor a_rows = a.narrow(0, begin, length), g_rows = g.narrow(0, begin, length);
    const UnitNorm way = choose(length);
    const bool by_gram = way == &unit_norm_by_gram;
    const MeasuredRows a_measured(a_rows, by_gram), g_measured(g_rows, by_gram);
    double unit_mass = 0;
    for (size_t t = 0; t < a_measured.norms().size(); ++t) unit_mass += a_measured.norms()[t] * g_measured.norms()[t];
    unit_mass *= 1 + gamma_float64(length + 2);
    mass[u] += unit_mass;
    if (unit_mass == 0) continue;  // every term is exactly zero
    if (!std::isfinite(unit_mass)) {
      value[u] += unit_mass;
      continue;
    }
    // c·g rounds once, the product with a once for each row, and the addition to the values already in the sum once
    // more.
    const UnitSum later{.mass = unit_mass, .error = float_sum_error(a.scalar_type(), length + 2)};
    sum_error[u] = std::max(sum_error[u], later.error);
    const BoundedSum norm = way(a_measured.rows(), g_measured.rows(), later);
    value[u] += norm.value;
    value_error[u] += norm.error;
  }
}

}  // namespace

void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts) {
  if (device::runs_on_device(a)) {
    return on_device::gram_norm(a, g, segments, parts);
  }
  require_row_pair("gram_norm", "a", a, "g", g, segments);
  require_parts(parts, segments.units());
  add_unit_norms(a, g, segments, parts, [](int64_t) { return &unit_norm_by_gram; });
}

void passing_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts) {
  if (device::runs_on_device(a)) {
    return on_device::passing_norm(a, g, segments, parts);
  }
  require_row_pair("passing_norm", "a", a, "g", g, segments);
  require_parts(parts, segments.units());
  const LinearShape shape{.inputs = a.size(1), .outputs = g.size(1)};
  add_unit_norms(a, g, segments, parts, [&](int64_t length) {
    const Segments unit(std::vector<int64_t>{0, length});
    const MachineRates rates = usual_rates(at::kCPU, a.scalar_type());
    const auto seconds = [&](Recording way) { return recording_cost(way, shape, unit, rates).seconds; };
    // Both ways also pay for the later product; the rest of holding's cost is about that of the panels.
    return seconds(Recording::kHold) < seconds(Recording::kReplay) ? &unit_norm_by_panels : &unit_norm_by_gram;
  });
}

}  // namespace ghostshard::kernels
