// For engine_module.cpp: optimizers' moments of 8 bits, AdamW's step on them (kernels/quantised_moments.h), and weights
// of 16 bits (kernels/rounded_weights.h).
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/quantised_moments.h"
#include "kernels/rounded_weights.h"

namespace ghostshard::dp {

// One step of AdamW on flat float32 values, in place (kernels/quantised_moments.h). scales: of both moments, if they
// are bytes. error_variance is that of this gradient, known_variance the average of all steps' so far, weighted as the
// second moment weighs squares: the rule takes the one out of g² and knows the other to be in the corrected moment. The
// second moment has a sign if known_variance > 0. A learning rate of 0, the first of a warm-up, moves the moments
// alone.
inline void adamw_step(const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& first,
                       const at::Tensor& second, const std::optional<std::pair<at::Tensor, at::Tensor>>& scales,
                       int64_t step, double learning_rate, const std::pair<double, double>& betas, double epsilon,
                       double weight_decay, double error_variance, double known_variance, std::optional<double> floor) {
  const bool rests = learning_rate == 0;
  kernels::AdamWStep rule{.learning_rate = rests ? 1 : learning_rate,
                          .beta1 = betas.first,
                          .beta2 = betas.second,
                          .epsilon = epsilon,
                          .weight_decay = weight_decay,
                          .step = step,
                          .error_variance = known_variance};
  if (floor) {
    rule.floor = *floor;
    rule.subtract = true;
  }
  kernels::AdamWTerms terms = kernels::adamw_terms(rule);
  TORCH_CHECK_VALUE(error_variance >= 0 && std::isfinite(error_variance),
                    "the error variance must be finite and >= 0, got ", error_variance);
  if (known_variance > 0) {  // a step without errors after others leaves the sign; next to any square it is nothing
    terms.error_variance = std::max(static_cast<float>(error_variance), std::numeric_limits<float>::min());
  }
  if (rests) terms.decay = 1, terms.step_size = 0;
  if (scales) {
    const kernels::MomentCodes codes{
        .first = first, .second = second, .first_scale = scales->first, .second_scale = scales->second};
    kernels::adamw_step(terms, weights, gradient, codes);
  } else {
    kernels::adamw_step(terms, weights, gradient, first, second);
  }
}

inline kernels::CodeSign sign_of(bool is_signed) {
  return is_signed ? kernels::CodeSign::kSigned : kernels::CodeSign::kUnsigned;
}

// Bytes and scales of flat float32 values in host memory.
inline std::pair<at::Tensor, at::Tensor> encode_moments(const at::Tensor& values, bool is_signed) {
  at::Tensor codes = at::empty({values.numel()}, at::dtype(at::kByte));
  at::Tensor scales = at::empty({kernels::stretches(values.numel())}, at::dtype(at::kFloat));
  kernels::encode_moments(values, sign_of(is_signed), codes, scales);
  return {codes, scales};
}

inline at::Tensor decode_moments(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  at::Tensor values = at::empty({codes.numel()}, at::dtype(at::kFloat));
  kernels::decode_moments(codes, scales, sign_of(is_signed), values);
  return values;
}

inline void define_moments(pybind11::module_& module) {
  namespace py = pybind11;
  using Released = py::call_guard<py::gil_scoped_release>;
  module.def("adamw_step", &adamw_step, py::arg("weights"), py::arg("gradient"), py::arg("first"), py::arg("second"),
             py::arg("scales"), py::arg("step"), py::arg("learning_rate"), py::arg("betas"), py::arg("epsilon"),
             py::arg("weight_decay"), py::arg("error_variance"), py::arg("known_variance"), py::arg("floor"),
             Released());
  module.def("round_weights", &kernels::round_weights, py::arg("values"), py::arg("parameter"), py::arg("step"),
             py::arg("first_element"), py::arg("stored"), Released());
  module.def("encode_moments", &encode_moments, py::arg("values"), py::arg("is_signed"), Released());
  module.def("decode_moments", &decode_moments, py::arg("codes"), py::arg("scales"), py::arg("is_signed"), Released());
}

}  // namespace ghostshard::dp
