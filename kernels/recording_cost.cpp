// Which way a layer records; declared in linear_norm.h. Pure: shapes and memory in, a decision out.
#include <cmath>

#include "kernels/linear_norm.h"

namespace ghostshard::kernels {
namespace {

constexpr double kFloat32Bytes = 4;

// One core of a Zen 4 server CPU, float32, measured with bench/linear_norm_bench.cpp. Only ratios matter for the
// decision. What it says: holding costs per element of the held matrices whatever the rows; Grams cost rows·(d + p) per
// row, so that long units are held unless memory forbids and short ones are replayed.
constexpr double kProductFlopsPerSecond = 85e9;    // one large matrix product
constexpr double kBytesPerSecond = 10e9;           // beyond the caches
constexpr double kGramFlopsPerSecond = 90e9;       // the lower triangle only
constexpr double kSecondsPerRowElement = 0.25e-9;  // row norms, and scaling one side for the sum
// Error bounds grow with the rows, and from about here on units are recomputed in float64, the first rows having shown
// it, as whole products of half the speed.
constexpr double kFloat64FromRows = 1024;
constexpr double kFloat64Slowdown = 4;

}  // namespace

RecordingCost recording_cost(Recording way, const LinearShape& shape, const Segments& segments) {
  if (way == Recording::kTwoPass || way == Recording::kRecompute) {
    RecordingCost cost = recording_cost(Recording::kReplay, shape, segments);
    const RecordingCost hold = recording_cost(Recording::kHold, shape, segments);
    if (hold.seconds < cost.seconds) {
      // Panels do not leave the cache; the product is formed for the norm and again for the sum.
      const double product =
          2 * static_cast<double>(segments.rows()) * static_cast<double>(shape.inputs * shape.outputs);
      cost.flops = hold.flops + product;
      cost.seconds = hold.seconds + product / kProductFlopsPerSecond;
    }
    // Forward and the inputs' gradient once more; or forward twice more.
    const double again = 4 * static_cast<double>(segments.rows()) * static_cast<double>(shape.inputs * shape.outputs);
    cost.flops += again;
    cost.seconds += again / kProductFlopsPerSecond;
    cost.bytes_moved *= 2;
    cost.bytes_kept = 0;
    return cost;
  }
  const double inputs = static_cast<double>(shape.inputs), outputs = static_cast<double>(shape.outputs);
  const double rows = static_cast<double>(segments.rows()), units = static_cast<double>(segments.units());
  const double matrix = inputs * outputs;
  const double product = 2 * rows * matrix;
  const double row_elements = rows * (inputs + outputs);
  if (way == Recording::kHold) {
    // Written by the products and read by the sum; the norm reads it from the cache.
    const double held_bytes = kFloat32Bytes * 2 * units * matrix;
    return {.flops = product + 4 * units * matrix,
            .bytes_moved = kFloat32Bytes * row_elements + held_bytes,
            .bytes_kept = segments.units() * shape.inputs * shape.outputs * 4,
            .seconds = product / kProductFlopsPerSecond + held_bytes / kBytesPerSecond};
  }
  const double squared = static_cast<double>(segments.sum_of_squared_lengths());
  const double gram = squared * (inputs + outputs);
  const double slowdown = squared > kFloat64FromRows * rows ? kFloat64Slowdown : 1;
  return {.flops = gram + product,
          // The rows are read by row norms, Grams and sum; both Grams are written and read again.
          .bytes_moved = kFloat32Bytes * (3 * row_elements + 4 * squared + matrix),
          // Autograd holds the inputs until backward anyway, and that is when memory is shortest; g comes on top.
          .bytes_kept = segments.rows() * shape.outputs * 4,
          .seconds = product / kProductFlopsPerSecond + slowdown * gram / kGramFlopsPerSecond +
                     row_elements * kSecondsPerRowElement};
}

Recording choose_recording(const LinearShape& shape, const Segments& segments, int64_t memory_left_bytes) {
  const RecordingCost hold = recording_cost(Recording::kHold, shape, segments);
  const RecordingCost replay = recording_cost(Recording::kReplay, shape, segments);
  return hold.seconds < replay.seconds && hold.bytes_kept <= memory_left_bytes ? Recording::kHold : Recording::kReplay;
}

}  // namespace ghostshard::kernels
