// The operations that are not about matrices: the token table, a normalisation's scale and shift, noise. Memory bounds
// all of them.
#include <memory>

#include "bench/device_kernels/cases.h"
#include "kernels/affine_norm.h"
#include "kernels/embedding_norm.h"
#include "kernels/gaussian_tensor.h"

namespace ghostshard::bench {
namespace {

double real(int64_t count) { return static_cast<double>(count); }

struct Lookup {
  explicit Lookup(const Setting& s)
      : vocabulary(s.model.vocabulary),
        segments(kernels::Segments::even(s.rows.units, s.rows.length)),
        ids(at::randint(vocabulary, {s.rows.count()}, at::TensorOptions(s.device).dtype(at::kLong))),
        e(at::randn({s.rows.count(), s.model.width}, at::TensorOptions(s.device)).to(s.dtype)),
        factors(at::ones({s.rows.units}, at::TensorOptions(s.device).dtype(at::kFloat))),
        parts(kernels::NormParts::zeros(s.rows.units, s.device)) {
    // The place of each row's id if every unit had a table of its own.
    std::vector<int64_t> first;
    for (int64_t row = 0; row < s.rows.count(); ++row) first.push_back(row / s.rows.length * vocabulary);
    in_own_table = ids + at::tensor(first, at::kLong).to(s.device);
  }
  int64_t vocabulary;
  kernels::Segments segments;
  at::Tensor ids, e, factors, in_own_table;
  kernels::NormParts parts;
  at::Tensor out, of_peer;
};

Comparison lookup_norm(const Setting& s) {
  const auto t = std::make_shared<Lookup>(s);
  const int64_t table_of_every_unit = s.rows.units * t->vocabulary;
  const auto in_tables = [t, table_of_every_unit] {
    const at::Tensor tables = at::zeros({table_of_every_unit, t->e.size(1)}, t->factors.options())
                                  .index_add_(0, t->in_own_table, t->e.to(at::kFloat));
    t->of_peer = tables.view({t->segments.units(), -1}).square().sum(1);
  };
  Comparison found{
      .bytes = real(static_cast<int64_t>(t->e.nbytes() + t->ids.nbytes())),
      .memory_bound = true,
      .tolerance = s.tolerance(),
      .ours = {"embedding_norm", [t] { kernels::embedding_norm(t->ids, t->e, t->segments, t->vocabulary, t->parts); },
               [t] { return t->parts.value; }}};
  if (4 * table_of_every_unit * s.model.width <= s.most_bytes) {
    found.peers.push_back({"index_add", in_tables, [t] { return t->of_peer; }});
  }
  return found;
}

Comparison lookup_sum(const Setting& s) {
  const auto t = std::make_shared<Lookup>(s);
  t->out = at::zeros({t->vocabulary, s.model.width}, t->factors.options());
  const int64_t touched = std::get<0>(at::_unique(t->ids.cpu())).numel();
  const auto plain = [t] {
    t->of_peer =
        at::embedding_dense_backward(t->e, t->ids, t->vocabulary, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
  };
  return {.flops = real(t->e.numel()),
          .bytes = real(static_cast<int64_t>(t->e.nbytes() + t->ids.nbytes())) + 8 * real(touched * s.model.width),
          .memory_bound = true,
          .tolerance = s.tolerance(),
          .ours = {"embedding_scaled_sum",
                   [t] { kernels::embedding_scaled_sum(t->ids, t->e, t->segments, t->factors, t->out); },
                   [t] { return t->out; }},
          .peers = {{"embedding_backward", plain, [t] { return t->of_peer; }}}};
}

struct Normalisation {
  explicit Normalisation(const Setting& s)
      : segments(kernels::Segments::even(s.rows.units, s.rows.length)),
        g(at::randn({s.rows.count(), s.model.width}, at::TensorOptions(s.device)).to(s.dtype)),
        x_hat(at::randn({s.rows.count(), s.model.width}, at::TensorOptions(s.device)).to(s.dtype)),
        scale(at::zeros({s.rows.units, s.model.width}, at::TensorOptions(s.device).dtype(at::kFloat))),
        shift(at::zeros_like(scale)),
        of_scale(kernels::NormParts::zeros(s.rows.units, s.device)),
        of_shift(kernels::NormParts::zeros(s.rows.units, s.device)) {}
  kernels::Segments segments;
  at::Tensor g, x_hat, scale, shift;
  kernels::NormParts of_scale, of_shift;
  at::Tensor of_peer;
};

Comparison affine_norms(const Setting& s) {
  const auto t = std::make_shared<Normalisation>(s);
  const auto ours = [t] {
    kernels::per_unit_product_sum(t->g, t->x_hat, t->segments, t->scale, /*accumulate=*/false, t->of_scale);
    kernels::per_unit_row_sum(t->g, t->segments, t->shift, /*accumulate=*/false, t->of_shift);
  };
  const std::vector<int64_t> of_units{s.rows.units, s.rows.length, s.model.width};
  const auto by_einsum = [t, g = t->g.view(of_units), x_hat = t->x_hat.view(of_units)] {
    const at::Tensor scale = at::einsum("utd,utd->ud", {g, x_hat}).to(at::kFloat);
    t->of_peer = scale.square().sum(1) + at::sum(g, {1}, /*keepdim=*/false, at::kFloat).square().sum(1);
  };
  const int64_t sums = 2 * t->scale.numel();
  return {.flops = 3 * real(t->g.numel()),
          .bytes = real(static_cast<int64_t>(t->g.nbytes() + t->x_hat.nbytes())) + 4 * real(sums),
          .memory_bound = true,
          .tolerance = s.tolerance(),
          .ours = {"affine", ours, [t] { return t->of_scale.value + t->of_shift.value; }},
          .peers = {{"einsum", by_einsum, [t] { return t->of_peer; }}}};
}

Comparison noise(int64_t elements, at::Device device) {
  const at::Tensor out = at::zeros({elements}, at::TensorOptions(device).dtype(at::kFloat));
  const at::Tensor drawn = at::empty_like(out);
  const kernels::ChaChaKey key{1, 2, 3};
  constexpr uint32_t kParameter = 7;
  constexpr float kScale = 0.5F;
  const auto ours = [=] { kernels::add_gaussian(key, kParameter, 0, kScale, out); };
  const auto by_torch = [=] {
    drawn.normal_();
    out.add_(drawn, kScale);
  };
  return {.bytes = 8 * real(elements),
          .memory_bound = true,
          .ours = {"add_gaussian", ours, nullptr},
          .peers = {{"normal", by_torch, nullptr}}};
}

}  // namespace

std::vector<Entry> lookup_entries(const Setting& setting) {
  return {{"embedding_norm/" + setting.suffix(), [setting] { return lookup_norm(setting); }},
          {"embedding_scaled_sum/" + setting.suffix(), [setting] { return lookup_sum(setting); }}};
}

std::vector<Entry> affine_entries(const Setting& setting) {
  return {{"affine_norms/" + setting.suffix(), [setting] { return affine_norms(setting); }}};
}

std::vector<Entry> noise_entries(const Model& model, at::Device device) {
  const int64_t matrix = 4 * model.width * model.width, table = model.vocabulary * model.width;
  return {{"add_gaussian/mlp/" + model.name, [matrix, device] { return noise(matrix, device); }},
          {"add_gaussian/table/" + model.name, [table, device] { return noise(table, device); }}};
}

std::string Setting::suffix() const {
  const std::string type = dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bfloat16" : "float16";
  return model.name + "/T" + std::to_string(rows.length) + "/" + type;
}

}  // namespace ghostshard::bench
