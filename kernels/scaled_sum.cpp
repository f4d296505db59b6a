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

// Elements of out that stay in the first-level cache while all units' values for them are read.
constexpr int64_t kBlock = 2048;

// A run of fewer rows than this costs more for reading and writing out than for copying its rows together with others.
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
  require_held_sum(op, held, factors, out, at::kCPU);
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
  require_shape(op, "out", out, {g.size(1), a.size(1)}, a.scalar_type());
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

}  // namespace ghostshard::kernels
