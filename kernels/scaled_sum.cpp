#include "kernels/scaled_sum.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/float32_products.h"
#include "kernels/host/vectorised.h"
#include "kernels/norm_parts/bound.h"

namespace ghostshard::kernels {
namespace {

// Elements of out that stay in the first-level cache while all units' values for them are read.
constexpr int64_t kBlock = 2048;

// Runs of fewer rows than this are copied together: a product of few rows costs more for adding it than for its rows.
constexpr int64_t kShortRun = 64;

// A product is formed in panels of rows, and a panel is added while it is in the cache.
constexpr int64_t kPanelElements = int64_t{512} * 768;
constexpr int64_t kLeastPanelRows = 64;

// Rows that are summed apart from all others: one unit's, or those of units that may share a product.
struct Run {
  int64_t begin;
  int64_t end;
  bool shares;
  int64_t rows() const { return end - begin; }
};

// Whether each unit's rows may be summed together with others'. A single row cannot cancel: its mass is its norm.
std::vector<bool> sharing_units(const Segments& segments, const NormParts* parts) {
  std::vector<bool> shares;
  const at::Tensor bound = parts != nullptr ? norm_upper_bound_sq(*parts) : at::Tensor();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const bool light = bound.defined() && parts->mass.const_data_ptr<double>()[u] <=
                                              kSharedMass * std::sqrt(bound.const_data_ptr<double>()[u]);
    shares.push_back(segments.length(u) == 1 || (light && segments.length(u) < kSharedRows));
  }
  return shares;
}

// The rows of each unit with a factor other than 0.
std::vector<Run> contributing_rows(const Segments& segments, const float* factors, const std::vector<bool>& shares) {
  std::vector<Run> runs;
  for (int64_t u = 0; u < segments.units(); ++u) {
    if (factors[u] == 0 || segments.length(u) == 0) continue;
    runs.push_back({segments.begin(u), segments.end(u), shares[static_cast<size_t>(u)]});
  }
  return runs;
}

// Neighbours that may share a product do, up to kSharedRows.
std::vector<Run> shared_products(const std::vector<Run>& units) {
  std::vector<Run> products;
  for (const Run& unit : units) {
    const bool joins = !products.empty() && products.back().shares && unit.shares &&
                       products.back().end == unit.begin && products.back().rows() + unit.rows() <= kSharedRows;
    if (joins) {
      products.back().end = unit.end;
    } else {
      products.push_back(unit);
    }
  }
  return products;
}

template <typename Scalar>
void scale_rows(const at::Tensor& x, const Segments& segments, const float* factors, at::Tensor& scaled) {
  const int64_t columns = x.size(1), stride = row_stride(x);
  const Scalar* from = x.const_data_ptr<Scalar>();
  Scalar* to = scaled.mutable_data_ptr<Scalar>();
  for (int64_t u = 0; u < segments.units(); ++u) {
    if (factors[u] == 0) {
      continue;  // never read, neither here nor by the products below
    }
    const Scalar c = static_cast<Scalar>(factors[u]);
    for (int64_t t = segments.begin(u); t < segments.end(u); ++t) {
      for (int64_t i = 0; i < columns; ++i) to[t * columns + i] = c * from[t * stride + i];
    }
  }
}

// The rows of the units one after the other, without the gaps that units of factor 0 leave.
at::Tensor without_gaps(const at::Tensor& x, const std::vector<Run>& units) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(units.size());
  for (const Run& unit : units) pieces.push_back(x.slice(0, unit.begin, unit.end));
  return at::cat(pieces);
}
std::vector<Run> without_gaps(std::vector<Run> units) {
  int64_t begin = 0;
  for (Run& unit : units) {
    unit = {begin, begin + unit.rows(), unit.shares};
    begin = unit.end;
  }
  return units;
}

// out [p,d] += left's rows, transposed, times right's, run by run. Each run's product is formed by itself and meets the
// sum in one addition. (A library's product that adds to out may do so in any order.)
void add_products(const at::Tensor& left, const at::Tensor& right, const std::vector<Run>& products, at::Tensor& out) {
  const int64_t outputs = left.size(1), inputs = right.size(1);
  const int64_t height = std::min(outputs, std::max(kLeastPanelRows, kPanelElements / inputs));
  const at::Tensor panel = at::empty({height, inputs}, out.options());
  const Float32Products in_float32;
  for (int64_t top = 0; top < outputs; top += height) {
    const int64_t rows = std::min(height, outputs - top);
    at::Tensor product = panel.narrow(0, 0, rows), sum = out.narrow(0, top, rows);
    for (const Run& run : products) {
      at::mm_out(product, left.slice(0, run.begin, run.end).narrow(1, top, rows).t(),
                 right.slice(0, run.begin, run.end));
      sum.add_(product);
    }
  }
}

template <typename Scalar>
void sum_held(const Scalar* held, const float* factors, int64_t units, int64_t elements, Scalar* out) {
  std::vector<int64_t> contributing;
  for (int64_t u = 0; u < units; ++u) {
    if (factors[u] != 0) {
      contributing.push_back(u);
    }
  }
  const auto count = static_cast<int64_t>(contributing.size());
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t n = std::min(kBlock, elements - begin);
    const auto row = [&](int64_t k) { return held + contributing[static_cast<size_t>(k)] * elements + begin; };
    const auto factor = [&](int64_t k) { return static_cast<Scalar>(factors[contributing[static_cast<size_t>(k)]]); };
    int64_t k = 0;
    for (; k + 4 <= count; k += 4) {
      const Scalar c[4] = {factor(k), factor(k + 1), factor(k + 2), factor(k + 3)};
      const Scalar* const x[4] = {row(k), row(k + 1), row(k + 2), row(k + 3)};
      add_four_scaled_to(out + begin, c, x, n);
    }
    for (; k < count; ++k) {
      add_scaled_to(out + begin, factor(k), row(k), n);
    }
  }
}

void add_rows(const at::Tensor& left, const at::Tensor& right, const std::vector<Run>& units, at::Tensor& out) {
  const std::vector<Run> products = shared_products(units), closed_up = shared_products(without_gaps(units));
  int64_t rows = 0;
  for (const Run& unit : units) rows += unit.rows();
  if (closed_up.size() < products.size() && rows < kShortRun * static_cast<int64_t>(products.size())) {
    add_products(without_gaps(left, units), without_gaps(right, units), closed_up, out);
  } else {
    add_products(left, right, products, out);
  }
}

at::Tensor scaled_rows(const at::Tensor& x, const Segments& segments, const at::Tensor& factors) {
  at::Tensor scaled = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scaled_rows",
                             [&] { scale_rows<scalar_t>(x, segments, factors.const_data_ptr<float>(), scaled); });
  return scaled;
}

}  // namespace

double shared_rounding(int64_t units) {
  const double n = static_cast<double>(units), in_products = kSharedMass * gamma_float32(kSharedRows + 2);
  // A tied table adds two terms for each unit.
  const double in_additions = gamma_float32(2 * units + 2) * (kTiedNorms + in_products);
  return n * (in_products + in_additions);
}

void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out) {
  if (device::runs_on_device(held)) {
    return on_device::scaled_sum_held(held, factors, out);
  }
  constexpr const char* op = "scaled_sum_held";
  require_held_sum(op, held, factors, out, at::kCPU);
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), op, [&] {
    sum_held<scalar_t>(held.const_data_ptr<scalar_t>(), factors.const_data_ptr<float>(), held.size(0), out.numel(),
                       out.mutable_data_ptr<scalar_t>());
  });
}

void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out, const NormParts* parts) {
  if (device::runs_on_device(a)) {
    return on_device::scaled_sum_rows(a, g, segments, factors, out);
  }
  constexpr const char* op = "scaled_sum_rows";
  require_row_pair(op, "a", a, "g", g, segments);
  require_shape(op, "out", out, {g.size(1), a.size(1)}, a.scalar_type());
  require_factors(op, factors, segments.units());
  if (parts != nullptr) require_parts(*parts, segments.units());
  const std::vector<Run> units =
      contributing_rows(segments, factors.const_data_ptr<float>(), sharing_units(segments, parts));
  if (units.empty() || out.numel() == 0) {
    return;
  }
  if (a.size(1) < g.size(1)) {
    add_rows(g, scaled_rows(a, segments, factors), units, out);
  } else {
    add_rows(scaled_rows(g, segments, factors), a, units, out);
  }
}

void scaled_sum_tiles(const at::Tensor& a, std::vector<at::Tensor>& tiles, const Segments& segments,
                      const at::Tensor& factors, at::Tensor out, const NormParts* parts) {
  constexpr const char* op = "scaled_sum_tiles";
  int64_t outputs = 0;
  for (const at::Tensor& tile : tiles) outputs += tile.size(1);
  require_matrix(op, "a", a);
  require_shape(op, "out", out, {outputs, a.size(1)}, a.scalar_type());
  require_factors(op, factors, segments.units());
  if (parts != nullptr) require_parts(*parts, segments.units());
  const std::vector<Run> units =
      contributing_rows(segments, factors.const_data_ptr<float>(), sharing_units(segments, parts));
  const at::Tensor scaled = scaled_rows(a, segments, factors);
  int64_t first = 0;
  for (at::Tensor& tile : tiles) {
    const at::Tensor g = std::exchange(tile, {}).to(a.scalar_type());
    require_row_pair(op, "a", a, "g", g, segments);
    at::Tensor sum = out.narrow(0, first, g.size(1));
    first += g.size(1);
    if (!units.empty() && sum.numel() > 0) add_rows(g, scaled, units, sum);
  }
}

}  // namespace ghostshard::kernels
