// Matrices, each operation beside three forms of PyTorch: cuBLAS' plain products (Gram matrices with bmm, multiplied
// and summed), per-example gradients by einsum, and the plain weight gradient, which training without norms computes.
#include <memory>

#include "bench/device_kernels/cases.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"

namespace ghostshard::bench {
namespace {

struct Layer {
  const char* name;
  int64_t inputs, outputs;
};

std::vector<Layer> layers_of(const Model& model) {
  const int64_t d = model.width;
  return {{"qkv", d, 3 * d},
          {"attention_out", d, d},
          {"mlp_in", d, 4 * d},
          {"mlp_out", 4 * d, d},
          {"head", d, model.vocabulary}};
}

double real(int64_t count) { return static_cast<double>(count); }

// Rows of one layer and the results of its operations. Factors are 1, so that the clipped sum is the plain gradient and
// the two can be compared; no kernel treats 1 differently.
struct Tensors {
  Tensors(const Setting& setting, const Layer& layer)
      : segments(kernels::Segments::even(setting.rows.units, setting.rows.length)),
        a((at::randn({setting.rows.count(), layer.inputs}, on(setting)) + at::randn({1, layer.inputs}, on(setting)))
              .to(setting.dtype)),
        g((at::randn({setting.rows.count(), layer.outputs}, on(setting)) * 1e-3).to(setting.dtype)),
        a_of_units(a.view({setting.rows.units, setting.rows.length, layer.inputs})),
        g_of_units(g.view({setting.rows.units, setting.rows.length, layer.outputs})),
        factors(at::ones({setting.rows.units}, on(setting))),
        parts(kernels::NormParts::zeros(setting.rows.units, setting.device)) {}
  static at::TensorOptions on(const Setting& setting) { return at::TensorOptions(setting.device).dtype(at::kFloat); }

  kernels::Segments segments;
  at::Tensor a, g, a_of_units, g_of_units, factors;
  kernels::NormParts parts;
  at::Tensor out, held;                                // ours
  at::Tensor norms_of_peer, sum_of_einsum, sum_of_mm;  // theirs
};
using Shared = std::shared_ptr<Tensors>;

at::Tensor per_unit_gradients(const Tensors& t) { return at::einsum("uto,uti->uoi", {t.g_of_units, t.a_of_units}); }
at::Tensor squared_norms(const at::Tensor& per_unit) {
  return at::sum(per_unit.square(), {1, 2}, /*keepdim=*/false, at::kFloat);
}

Side by_bmm(const Shared& t) {
  const auto call = [t] {
    const at::Tensor inputs = at::bmm(t->a_of_units, t->a_of_units.transpose(1, 2));
    const at::Tensor outputs = at::bmm(t->g_of_units, t->g_of_units.transpose(1, 2));
    t->norms_of_peer = at::sum(inputs * outputs, {1, 2}, /*keepdim=*/false, at::kFloat);
  };
  return {"bmm", call, [t] { return t->norms_of_peer; }};
}

Side norm_by_einsum(const Shared& t) {
  return {"einsum", [t] { t->norms_of_peer = squared_norms(per_unit_gradients(*t)); },
          [t] { return t->norms_of_peer; }};
}

Side sum_by_einsum(const Shared& t) {
  const auto call = [t] {
    const at::Tensor per_unit = per_unit_gradients(*t);
    t->norms_of_peer = squared_norms(per_unit);
    t->sum_of_einsum = at::einsum("u,uoi->oi", {t->factors.to(per_unit.scalar_type()), per_unit});
  };
  return {"einsum", call, [t] { return t->sum_of_einsum; }};
}

Side by_addmm(const Shared& t) {
  t->sum_of_mm = at::zeros({t->g.size(1), t->a.size(1)}, t->a.options());
  return {"addmm", [t] { at::addmm_out(t->sum_of_mm, t->sum_of_mm, t->g.t(), t->a); }, [t] { return t->sum_of_mm; }};
}

class Operation {
 public:
  Operation(const Setting& setting, const Layer& layer)
      : s_(setting),
        layer_(layer),
        held_values_(setting.rows.units * layer.inputs * layer.outputs),
        rows_bytes_(real(setting.rows.count() * (layer.inputs + layer.outputs)) *
                    static_cast<double>(c10::elementSize(setting.dtype))),
        product_flops_(2 * real(setting.rows.count()) * real(layer.inputs * layer.outputs)),
        // The lower triangles of both Gram matrices.
        gram_flops_(real(setting.rows.count()) * real(setting.rows.length + 1) * real(layer.inputs + layer.outputs)) {}

  bool can_hold() const { return 4 * held_values_ <= s_.most_bytes; }
  Shared tensors() const { return std::make_shared<Tensors>(s_, layer_); }

  Comparison gram_norm() const {
    const Shared t = tensors();
    return norm(gram_flops_, {"gram_norm", [t] { kernels::gram_norm(t->a, t->g, t->segments, t->parts); }, value(t)},
                t);
  }
  Comparison passing_norm() const {
    const Shared t = tensors();
    return norm(std::min(gram_flops_, product_flops_),
                {"passing_norm", [t] { kernels::passing_norm(t->a, t->g, t->segments, t->parts); }, value(t)}, t);
  }
  Comparison hold_and_sum() const {
    const Shared t = tensors();
    t->held = at::empty({s_.rows.units, layer_.outputs, layer_.inputs}, Tensors::on(s_));
    const Side ours = sum(t, [t] {
      kernels::per_unit_gradient(t->a, t->g, t->segments, t->held, /*accumulate=*/false, t->parts);
      kernels::scaled_sum_held(t->held, t->factors, t->out);
    });
    // The gradients are formed, squared and added for the norm, then scaled and added to the sum. They are written once
    // and read once.
    return {.flops = product_flops_ + 4 * real(held_values_),
            .bytes = rows_bytes_ + 2 * held_bytes() + out_bytes(),
            .tolerance = s_.tolerance(),
            .ours = ours,
            .peers = {sum_by_einsum(t), by_addmm(t)}};
  }
  Comparison held_sum() const {
    const Shared t = tensors();
    kernels::NormParts parts = kernels::NormParts::zeros(s_.rows.units, s_.device);
    t->held = at::empty({s_.rows.units, layer_.outputs, layer_.inputs}, Tensors::on(s_));
    kernels::per_unit_gradient(t->a, t->g, t->segments, t->held, /*accumulate=*/false, parts);
    const auto contract = [t] { t->sum_of_einsum = at::einsum("u,uoi->oi", {t->factors, t->held}); };
    return {.flops = 2 * real(held_values_),
            .bytes = held_bytes() + out_bytes(),
            .memory_bound = true,
            .tolerance = s_.tolerance(),
            .ours = sum(t, [t] { kernels::scaled_sum_held(t->held, t->factors, t->out); }),
            .peers = {{"einsum", contract, [t] { return t->sum_of_einsum; }}}};
  }
  Comparison rows_sum() const {
    const Shared t = tensors();
    return {.flops = product_flops_,
            .bytes = rows_bytes_ + out_bytes(),
            .tolerance = s_.tolerance(),
            .ours = sum(t, [t] { kernels::scaled_sum_rows(t->a, t->g, t->segments, t->factors, t->out); }),
            .peers = {by_addmm(t)}};
  }

 private:
  static std::function<at::Tensor()> value(const Shared& t) {
    return [t] { return t->parts.value; };
  }
  Comparison norm(double flops, const Side& ours, const Shared& t) const {
    Comparison found{
        .flops = flops, .bytes = rows_bytes_, .tolerance = s_.tolerance(), .ours = ours, .peers = {by_bmm(t)}};
    if (can_hold()) found.peers.push_back(norm_by_einsum(t));
    return found;
  }
  Side sum(const Shared& t, std::function<void()> call) const {
    t->out = at::zeros({layer_.outputs, layer_.inputs}, Tensors::on(s_));
    return {"sum", std::move(call), [t] { return t->out; }};
  }
  double held_bytes() const { return 4 * real(held_values_); }
  double out_bytes() const { return 8 * real(layer_.inputs * layer_.outputs); }

  Setting s_;
  Layer layer_;
  int64_t held_values_;
  double rows_bytes_, product_flops_, gram_flops_;
};

}  // namespace

std::vector<Entry> linear_entries(const Setting& setting) {
  std::vector<Entry> entries;
  for (const Layer& layer : layers_of(setting.model)) {
    const Operation operation(setting, layer);
    const auto add = [&](const char* name, Comparison (Operation::*make)() const) {
      entries.push_back({std::string(name) + "/" + layer.name + "/" + setting.suffix(),
                         [operation, make] { return (operation.*make)(); }});
    };
    add("gram_norm", &Operation::gram_norm);
    add("passing_norm", &Operation::passing_norm);
    add("scaled_sum_rows", &Operation::rows_sum);
    if (!operation.can_hold()) continue;
    add("per_unit_gradient+scaled_sum_held", &Operation::hold_and_sum);
    // Held gradients are float32, whatever the rows' dtype.
    if (setting.dtype == at::kFloat) add("scaled_sum_held", &Operation::held_sum);
  }
  return entries;
}

}  // namespace ghostshard::bench
