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

// Adds one unit's mass and norm, from rows that were measured; norm(later) is asked for if there is something to add.
template <typename Norm>
void add_unit_norm(int64_t unit, const UnitRows& a, const UnitRows& g, at::ScalarType type, NormParts& parts,
                   const Norm& norm) {
  double mass = 0;
  for (size_t t = 0; t < a.norms.size(); ++t) mass += a.norms[t] * g.norms[t];
  const auto rows = static_cast<int64_t>(a.norms.size());
  mass *= 1 + gamma_float64(rows + 2);
  parts.mass.mutable_data_ptr<double>()[unit] += mass;
  if (mass == 0) return;  // every term is exactly zero
  double& value = parts.value.mutable_data_ptr<double>()[unit];
  if (!std::isfinite(mass)) {
    value += mass;
    return;
  }
  // c·g rounds once, the product with a once for each row, and the addition to the values already in the sum once
  // more.
  const UnitSum later{.mass = mass, .error = float_sum_error(type, rows + 2)};
  double& sum_error = parts.sum_error.mutable_data_ptr<double>()[unit];
  sum_error = std::max(sum_error, later.error);
  const BoundedSum squared = norm(later);
  value += squared.value;
  parts.value_error.mutable_data_ptr<double>()[unit] += squared.error;
}

// Works unit by unit: rows are measured and their Gram matrix formed from one read.
template <typename Choose>
void add_unit_norms(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts,
                    const Choose& choose) {
  for (int64_t u = 0; u < segments.units(); ++u) {
    const int64_t begin = segments.begin(u), length = segments.length(u);
    const UnitNorm way = choose(length);
    const bool by_gram = way == &unit_norm_by_gram;
    const MeasuredRows a_measured(a.narrow(0, begin, length), by_gram), g_measured(g.narrow(0, begin, length), by_gram);
    const UnitRows of_a = a_measured.rows(), of_g = g_measured.rows();
    add_unit_norm(u, of_a, of_g, a.scalar_type(), parts, [&](const UnitSum& later) { return way(of_a, of_g, later); });
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

namespace {

void require_exact_rows(const char* name, const at::Tensor& x, const Segments& segments) {
  constexpr const char* op = "TiledGramNorm";
  require_apart_matrix(op, name, x);
  require_rows(op, name, x, segments);
  require(x.scalar_type() == at::kFloat, op, ": ", name, " must be float32; got ", x.scalar_type());
}

}  // namespace

bool TiledGramNorm::can_take(const at::Tensor& a, const Segments& segments) {
  return a.is_cpu() && segments.longest() <= kOneTileRows;
}

TiledGramNorm::TiledGramNorm(const Segments& segments) {
  for (int64_t u = 0; u < segments.units(); ++u) units_.emplace_back(segments.length(u));
}

void TiledGramNorm::take(const at::Tensor& g, const Segments& segments) {
  require_exact_rows("g", g, segments);
  for (int64_t u = 0; u < segments.units(); ++u) {
    units_[static_cast<size_t>(u)].add(g.narrow(0, segments.begin(u), segments.length(u)));
  }
}

void TiledGramNorm::add_to(const at::Tensor& a, std::span<const at::Tensor> tiles, const Segments& segments,
                           NormParts& parts) const {
  require_exact_rows("a", a, segments);
  require_parts(parts, segments.units());
  for (int64_t u = 0; u < segments.units(); ++u) {
    const RowsInPieces& unit = units_[static_cast<size_t>(u)];
    const int64_t begin = segments.begin(u), length = segments.length(u);
    const MeasuredRows a_measured(a.narrow(0, begin, length), /*with_gram=*/true);
    const UnitRows of_a = a_measured.rows();
    const std::vector<double> norms = unit.norms();
    UnitRows of_g{.x = {}, .norms = norms, .gram = unit.gram()};
    add_unit_norm(u, of_a, of_g, at::kFloat, parts, [&](const UnitSum&) {
      const BoundedSum squared = gram_product_sum(of_a, of_g, at::kFloat);
      if (certain_enough(squared)) return squared;
      std::vector<at::Tensor> rows;
      for (const at::Tensor& tile : tiles) rows.push_back(tile.narrow(0, begin, length));
      of_g.x = at::cat(rows, 1).to(at::kFloat);
      return gram_product_sum(of_a, of_g, at::kDouble);
    });
  }
}

}  // namespace ghostshard::kernels
