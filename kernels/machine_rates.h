// How fast a machine does the operations that norms and clipped sums consist of. The rates decide how layers record
// (recording.h), but no computed value; only their ratios count.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::kernels {

struct MachineRates {
  double product_flops;            // a second, in one large matrix product
  double gram_flops;               // a second, in the lower triangles of Gram matrices
  double bytes;                    // moved a second, beyond the caches
  double seconds_per_row_element;  // for row norms, and for scaling one side for the sum
  double narrow_from_rows;         // units with more rows usually need better arithmetic than their own
  double narrow_slowdown;          // the factor by which the Gram norm of such units takes longer
};

// Rates that need no measurement. CPU: from bench/linear_norm_bench.cpp on one core of a Zen 4 server CPU. Devices:
// about a third of the rates in the data sheets of data-centre devices. rows: the dtype of a and g.
MachineRates usual_rates(at::DeviceType device, at::ScalarType rows);

// The layer to measure with. Its units must be long enough for a Gram matrix's triangle to pay, and memory must hold
// them and their gradients several times.
struct MeasuredLayer {
  int64_t units = 8;
  int64_t rows = 512;
  int64_t inputs = 1024;
  int64_t outputs = 1024;
};

// Measures the rates on this device with rows of random numbers; takes less than a second on a GPU. narrow_from_rows
// stays the usual one.
MachineRates measured_rates(at::Device device, at::ScalarType rows, const MeasuredLayer& layer = {});

}  // namespace ghostshard::kernels
