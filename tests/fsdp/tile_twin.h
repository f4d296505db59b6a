// Shampoo and SOAP by the formulas of fsdp/shampoo.h, in float64 and tile by tile.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>

#include "fsdp/shampoo.h"
#include "tests/fsdp/matrix_steps.h"

namespace ghostshard::fsdp {

struct Rule {
  const char* name;
  bool soap;
  double variance;
};
inline void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

inline ShampooOptions tiled_options() {
  ShampooOptions given;
  given.side = 16;
  given.refresh_every = 2;
  given.factor_beta = 0.9;
  given.weight_decay = 0.1;
  given.adamw = {.beta2 = 0.95, .weight_decay = 0.1};
  given.matrices = is_matrix;
  return given;
}

inline Make make_tiled(const Rule& rule, const ShampooOptions& given = tiled_options()) {
  return [rule, given](ShardedModel& model) {
    auto made = rule.soap ? make_soap(model, given) : make_shampoo(model, given);
    made->set_error_variance(rule.variance);
    return made;
  };
}

struct TileTwin {
  Rule rule;
  ShampooOptions o = tiled_options();
  at::Tensor m, v, left, right, left_transform, right_transform;
  int64_t t = 0;

  // Errors' eigenvalues: their mean, and the edges' distances from it, relative.
  double mean(int64_t other) const { return rule.variance * static_cast<double>(other); }
  double spread(int64_t side, int64_t other) const {
    double sum = 0, squares = 0;
    for (int64_t s = 0; s < t; ++s) {
      sum += std::pow(o.factor_beta, static_cast<double>(s));
      squares += std::pow(o.factor_beta, 2.0 * static_cast<double>(s));
    }
    return std::sqrt(static_cast<double>(side) / static_cast<double>(other) * squares / (sum * sum));
  }

  at::Tensor root(const at::Tensor& factor, int64_t other) const {
    const double edge = spread(factor.size(0), other);
    auto [values, vectors] = at::linalg_eigh(factor / (1 - std::pow(o.factor_beta, static_cast<double>(t))));
    values = values - mean(other);
    const double least = mean(other) * std::max(o.error_floor, 2 * edge + edge * edge);
    values = values.clamp_min(std::max(least, 1e-6 * values.max().item<double>()));
    return vectors.mm(values.pow(-0.25).diag()).mm(vectors.t());
  }

  at::Tensor basis(const at::Tensor& factor, const at::Tensor& before, int64_t other) const {
    if (t == 1) return std::get<1>(at::linalg_eigh(factor)).flip(1);
    const double edge = spread(factor.size(0), other);
    const double lower = edge < 1 ? mean(other) * (1 - edge) * (1 - edge) : 0;
    const at::Tensor rest =
        factor / (1 - std::pow(o.factor_beta, static_cast<double>(t))) - lower * at::eye(factor.size(0), at::kDouble);
    return std::get<0>(at::linalg_qr(rest.mm(before)));
  }

  at::Tensor step(const at::Tensor& g) {
    const int64_t rows = g.size(0), columns = g.size(1);
    if (t++ == 0) {
      m = at::zeros_like(g), v = at::zeros_like(g);
      left = at::zeros({rows, rows}, at::kDouble), right = at::zeros({columns, columns}, at::kDouble);
    }
    const auto [b1, b2, epsilon, decay] = o.adamw;
    const double seen1 = 1 - std::pow(b1, static_cast<double>(t)), seen2 = 1 - std::pow(b2, static_cast<double>(t));
    m = b1 * m + (1 - b1) * g;
    left = o.factor_beta * left + (1 - o.factor_beta) * g.mm(g.t());
    right = o.factor_beta * right + (1 - o.factor_beta) * g.t().mm(g);
    const bool refresh = t % o.refresh_every == 1 % o.refresh_every;
    if (rule.soap) {
      const auto turned = [&](const at::Tensor& x) { return left_transform.t().mm(x).mm(right_transform); };
      at::Tensor moved = g / (g.abs() + epsilon);
      if (t > 1) {
        v = b2 * v + (1 - b2) * turned(g).square();
        moved = left_transform.mm(turned(m / seen1) / ((v / seen2).sqrt() + epsilon)).mm(right_transform.t());
      }
      if (refresh) {
        const at::Tensor next = basis(left, left_transform, columns);
        right_transform = basis(right, right_transform, rows);
        left_transform = next;
      }
      if (t == 1) v = (1 - b2) * turned(g).square();
      return moved;
    }
    if (refresh) left_transform = root(left, columns), right_transform = root(right, rows);
    v = b2 * v + (1 - b2) * g.square();
    const at::Tensor adam = (m / seen1) / ((v / seen2).sqrt() + epsilon);
    const at::Tensor whitened = left_transform.mm(m).mm(right_transform);
    return whitened * (adam.norm() / whitened.norm());
  }
};

inline at::Tensor twin(const Rule& rule, const ShampooOptions& o, const Parameter& parameter, int64_t steps) {
  at::Tensor w = start_of(parameter).to(at::kDouble);
  for (const at::Tensor& rows : w.split(o.side, 0)) {
    for (const at::Tensor& tile : rows.split(o.side, 1)) {
      const auto part = [&, row = (tile.storage_offset() / w.size(1)),
                         column = tile.storage_offset() % w.size(1)](const at::Tensor& whole) {
        return whole.narrow(0, row, tile.size(0)).narrow(1, column, tile.size(1));
      };
      TileTwin states{.rule = rule, .o = o};
      for (int64_t step = 0; step < steps; ++step) {
        const at::Tensor moved = states.step(part(gradient_of(parameter, step)).to(at::kDouble));
        tile.mul_(1 - kRate * o.weight_decay).sub_(moved, kRate);
      }
    }
  }
  return w;
}

}  // namespace ghostshard::fsdp
