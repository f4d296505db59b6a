// Which way a layer records; declared in linear_norm.h. Pure: shapes and memory in, a decision out.
#include <cmath>

#include "kernels/linear_norm.h"

namespace ghostshard::kernels {
namespace {

constexpr double kFloat32Bytes = 4;

// One core of a Zen 4 server CPU, float32, measured with bench/linear_norm_bench.cpp at 16 to 512 rows a unit and
// 256x256 to 768x3072 matrices; the model is within 15% of it. Only ratios matter for the decision. What it says:
// holding costs per element of the held matrices whatever the rows, so it wins from about d·p / (d + p) / 4 rows on
// (768x768: 100 rows are a draw), and long units are held unless memory forbids.
constexpr double kProductFlopsPerSecond = 100e9;  // one large matrix product
constexpr double kBytesPerSecond = 12e9;          // beyond the caches
constexpr double kGramFlopsPerSecond = 75e9;      // tiles: smaller products and a pass over each
constexpr double kSecondsPerProduct = 4e-6;       // starting one small product
constexpr double kSecondsPerRowElement = 0.6e-9;  // row norms, and scaling one side for the sum
// Error bounds grow with the rows, and from about here on most units are recomputed in float64 at half the speed,
// after the first rows have shown it.
constexpr double kFloat64FromRows = 256;
constexpr double kFloat64Slowdown = 1.6;
constexpr double kChunkColumns = 256;  // as in unit_norms.cpp

}  // namespace

RecordingCost recording_cost(Recording way, const LinearShape& shape, const Segments& segments) {
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
  const double gram = 2 * squared * (inputs + outputs);
  const double products = units * (std::ceil(inputs / kChunkColumns) + std::ceil(outputs / kChunkColumns));
  const double slowdown = squared > kFloat64FromRows * rows ? kFloat64Slowdown : 1;
  return {.flops = gram + product,
          // The rows are read by row norms, Grams and sum; both Grams are written and read again.
          .bytes_moved = kFloat32Bytes * (3 * row_elements + 4 * squared + matrix),
          // Autograd holds the inputs until backward anyway, and that is when memory is shortest; g comes on top.
          .bytes_kept = segments.rows() * shape.outputs * 4,
          .seconds = product / kProductFlopsPerSecond + slowdown * gram / kGramFlopsPerSecond +
                     products * kSecondsPerProduct + row_elements * kSecondsPerRowElement};
}

Recording choose_recording(const LinearShape& shape, const Segments& segments, int64_t memory_left_bytes) {
  const RecordingCost hold = recording_cost(Recording::kHold, shape, segments);
  const RecordingCost replay = recording_cost(Recording::kReplay, shape, segments);
  return hold.seconds < replay.seconds && hold.bytes_kept <= memory_left_bytes ? Recording::kHold : Recording::kReplay;
}

}  // namespace ghostshard::kernels
