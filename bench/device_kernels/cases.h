// The measured operations, at the shapes of GPT-2.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/device_kernels/comparison.h"

namespace ghostshard::bench {

struct Model {
  std::string name;
  int64_t width, vocabulary;
};

// `units` units of `length` rows each.
struct Rows {
  int64_t units, length;
  int64_t count() const { return units * length; }
};

struct Setting {
  Model model;
  Rows rows;
  at::ScalarType dtype;  // of rows; sums are float32
  at::Device device;
  int64_t most_bytes;  // of per-unit gradients: operations and peers that would hold more are left out

  std::string suffix() const;  // "124M/T100/float32"
  at::TensorOptions options() const { return at::TensorOptions(device).dtype(dtype); }
  // Between two ways of computing the same thing. Large enough for the rounding of the peers' 16-bit products and sums,
  // small enough to show that something else was computed.
  double tolerance() const { return dtype == at::kFloat ? 1e-3 : 5e-2; }
};

// Matrices: norms by Gram matrices and by passing_norm, held gradients with their sum, sums of rows.
std::vector<Entry> linear_entries(const Setting& setting);
// The token table: norm and sum.
std::vector<Entry> lookup_entries(const Setting& setting);
// Scale and shift of a normalisation.
std::vector<Entry> affine_entries(const Setting& setting);
// Noise for one matrix and for the token table: float32, whatever the rows are.
std::vector<Entry> noise_entries(const Model& model, at::Device device);

}  // namespace ghostshard::bench
