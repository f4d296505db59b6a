// The speed of a training step: tokens a second, and the share of the device's arithmetic that the model itself needs.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>

#include "examples/gpt2/config.h"

namespace ghostshard::gpt2 {

// Parameters of the matrices that every row is multiplied with: four in each block, and the head. Tables that are only
// looked up, biases and scales form no products.
int64_t multiplied_parameters(const Config& config);

// Floating-point operations of forward and backward without privacy: 6 for each multiplied parameter, and
// 12·width·length a layer for attention, whose masked half is counted too (PaLM, arXiv:2204.02311, appendix B). The
// operations of norms, clipped sums and recomputation are not counted: a private step that takes longer has a lower
// share.
double model_flops_per_token(const Config& config, int64_t length);

// 10^12 dense operations a second that the vendor's data sheet gives a device of this name for products of this type,
// float32 without TF32; nullopt for a device that is not listed.
std::optional<double> listed_peak_tflops(const std::string& device_name, at::ScalarType compute_dtype);

struct Throughput {
  double tokens_per_second;
  double model_tflops;        // of one rank's device
  std::optional<double> mfu;  // model_tflops over the peak, if that is known
};

struct MeasuredStep {
  int64_t tokens;  // of all ranks
  int64_t length;
  int64_t ranks;
  double seconds;
};

// peak_tflops: of one rank's device. std::invalid_argument unless ranks, seconds and the peak are positive.
Throughput throughput(const Config& config, const MeasuredStep& step, std::optional<double> peak_tflops);

}  // namespace ghostshard::gpt2
