// How fast a machine does what norms and clipped sums are made of. It decides how layers record (linear_norm.h) and
// nothing that is computed; only ratios count.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::kernels {

struct MachineRates {
  double product_flops;            // in a second, of one large matrix product
  double gram_flops;               // in a second, of the lower triangle of Gram matrices
  double bytes;                    // moved in a second, beyond the caches
  double seconds_per_row_element;  // row norms, and scaling one side for the sum
  double narrow_from_rows;         // units of more rows mostly need better than their own arithmetic
  double narrow_slowdown;          // and their Gram norm then takes so many times as long
};

// What is known without measuring: on the CPU from bench/linear_norm_bench.cpp on one core of a Zen 4 server CPU; on
// devices from data sheets of data-centre ones, about a third of what they promise. rows: the dtype of a and g.
MachineRates usual_rates(at::DeviceType device, at::ScalarType rows);

// A layer to measure with. Units must be long enough for a Gram's triangle to pay, and fit with their gradients into
// memory several times.
struct MeasuredLayer {
  int64_t units = 8;
  int64_t rows = 512;
  int64_t inputs = 1024;
  int64_t outputs = 1024;
};

// Timed on this device with rows of random numbers; below a second on a GPU. narrow_from_rows stays the usual one.
MachineRates measured_rates(at::Device device, at::ScalarType rows, const MeasuredLayer& layer = {});

}  // namespace ghostshard::kernels
