#include "kernels/scaled_sum.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {
namespace {

// Elements of out that stay in the first-level cache while the units' rows stream past.
constexpr int64_t kBlock = 2048;

// Below this many rows a run of its own costs more in reading and writing out than copying its rows together.
constexpr int64_t kShortRun = 64;

struct Run {
  int64_t begin;
  int64_t end;
};

// The rows of units with a factor other than 0, as maximal runs.
std::vector<Run> runs_of_contributing_rows(const Segments& segments, const float* factors) {
  std::vector<Run> runs;
  for (int64_t u = 0; u < segments.units(); ++u) {
    if (factors[u] == 0 || segments.length(u) == 0) {
      continue;
    }
    if (!runs.empty() && runs.back().end == segments.begin(u)) {
      runs.back().end = segments.end(u);
    } else {
      runs.push_back({segments.begin(u), segments.end(u)});
    }
  }
  return runs;
}

template <typename Scalar>
void scale_rows(const at::Tensor& x, const Segments& segments, const float* factors, at::Tensor& scaled) {
  const int64_t columns = x.size(1);
  const Scalar* from = x.const_data_ptr<Scalar>();
  Scalar* to = scaled.mutable_data_ptr<Scalar>();
  for (int64_t u = 0; u < segments.units(); ++u) {
    if (factors[u] == 0) {
      continue;  // never read, neither here nor by the products below
    }
    const Scalar c = static_cast<Scalar>(factors[u]);
    for (int64_t i = segments.begin(u) * columns; i < segments.end(u) * columns; ++i) {
      to[i] = c * from[i];
    }
  }
}

at::Tensor rows_of_runs(const at::Tensor& x, const std::vector<Run>& runs) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(runs.size());
  for (const Run& run : runs) {
    pieces.push_back(x.slice(0, run.begin, run.end));
  }
  return at::cat(pieces);
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

}  // namespace

void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out) {
  if (device::runs_on_device(held)) {
    return on_device::scaled_sum_held(held, factors, out);
  }
  constexpr const char* op = "scaled_sum_held";
  require_dense_cpu(op, "held", held);
  require_dense_cpu(op, "out", out);
  require(held.dim() >= 1 && held.sizes().slice(1) == out.sizes() && held.scalar_type() == out.scalar_type(), op,
          ": held must be [units, shape of out] and of its dtype; got ", held.sizes(), " ", held.scalar_type(),
          " for out ", out.sizes(), " ", out.scalar_type());
  require(out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble, op,
          ": out must be float32 (or float64 in tests); got ", out.scalar_type());
  require_factors(op, factors, held.size(0));
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), op, [&] {
    sum_held<scalar_t>(held.const_data_ptr<scalar_t>(), factors.const_data_ptr<float>(), held.size(0), out.numel(),
                       out.mutable_data_ptr<scalar_t>());
  });
}

void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out) {
  if (device::runs_on_device(a)) {
    return on_device::scaled_sum_rows(a, g, segments, factors, out);
  }
  constexpr const char* op = "scaled_sum_rows";
  require_row_pair(op, "a", a, "g", g, segments);
  require_matrix(op, "out", out);
  require(out.size(0) == g.size(1) && out.size(1) == a.size(1) && out.scalar_type() == a.scalar_type(), op,
          ": out must be [", g.size(1), ", ", a.size(1), "] of ", a.scalar_type(), "; got ", out.sizes(), " of ",
          out.scalar_type());
  require_factors(op, factors, segments.units());
  const std::vector<Run> runs = runs_of_contributing_rows(segments, factors.const_data_ptr<float>());
  if (runs.empty() || out.numel() == 0) {
    return;
  }
  const bool scale_a = a.size(1) < g.size(1);
  const at::Tensor& narrow = scale_a ? a : g;
  at::Tensor scaled = at::empty_like(narrow);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), op,
                             [&] { scale_rows<scalar_t>(narrow, segments, factors.const_data_ptr<float>(), scaled); });
  const auto add = [&](const at::Tensor& left, const at::Tensor& right) { at::addmm_out(out, out, left.t(), right); };
  const at::Tensor& left = scale_a ? g : scaled;
  const at::Tensor& right = scale_a ? scaled : a;
  int64_t rows = 0;
  for (const Run& run : runs) {
    rows += run.end - run.begin;
  }
  if (runs.size() > 1 && rows < kShortRun * static_cast<int64_t>(runs.size())) {
    add(rows_of_runs(left, runs), rows_of_runs(right, runs));
    return;
  }
  for (const Run& run : runs) {
    add(left.slice(0, run.begin, run.end), right.slice(0, run.begin, run.end));
  }
}

void raise_tied_sum_error(at::ScalarType type, const Segments& tokens, const Segments& lookups, NormParts& parts) {
  const bool on_device = device::runs_on_device(parts.value);
  std::vector<double> errors;
  for (int64_t u = 0; u < tokens.units(); ++u) {
    const int64_t rows = tokens.length(u);
    const int64_t of_head = on_device ? on_device::roundings_of_scaled_sum(type, rows) : rows + 2;
    const int64_t terms = of_head + lookups.length(u) + 2;
    errors.push_back(type == at::kDouble ? gamma_float64(terms) : gamma_float32(terms));
  }
  parts.sum_error.copy_(at::maximum(parts.sum_error, at::tensor(errors, at::kDouble).to(parts.sum_error.device())));
}

}  // namespace ghostshard::kernels
