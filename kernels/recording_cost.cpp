// Which way a layer records; declared in linear_norm.h. Pure: shapes and memory in, a decision out.
#include "kernels/linear_norm.h"

namespace ghostshard::kernels {
namespace {

constexpr double kFloat32Bytes = 4;

// One core of a server CPU, measured (bench/linear_norm_bench.cpp). Only the ratios matter for the decision.
constexpr double kFlopsPerSecond = 70e9;  // float32 matrix product
constexpr double kBytesPerSecond = 12e9;  // streaming
// A sum over few rows leaves little work for each element written: the rows at which a product runs at half speed.
constexpr double kHalfSpeedRows = 12;

}  // namespace

RecordingCost recording_cost(Recording way, const LinearShape& shape, const Segments& segments) {
  const double inputs = static_cast<double>(shape.inputs), outputs = static_cast<double>(shape.outputs);
  const double rows = static_cast<double>(segments.rows()), units = static_cast<double>(segments.units());
  const double matrix = inputs * outputs;
  if (way == Recording::kHold) {
    const double product = 2 * rows * matrix;
    const double flops = product + 4 * units * matrix;
    // Written by the product, read by the norm (from the cache, mostly: not counted) and read by the sum.
    const double bytes = kFloat32Bytes * (rows * (inputs + outputs) + 2 * units * matrix);
    const double half_speed = units * kHalfSpeedRows * 2 * matrix;
    return {.flops = flops,
            .bytes_moved = bytes,
            .bytes_kept = segments.units() * shape.inputs * shape.outputs * 4,
            .seconds = (product + half_speed) / kFlopsPerSecond + bytes / kBytesPerSecond};
  }
  const double squared = static_cast<double>(segments.sum_of_squared_lengths());
  const double gram = 2 * squared * (inputs + outputs);
  const double product = 2 * rows * matrix;
  const double flops = gram + product;
  const double bytes = kFloat32Bytes * (3 * rows * (inputs + outputs) + 4 * squared + matrix);
  return {.flops = flops,
          .bytes_moved = bytes,
          .bytes_kept = segments.rows() * shape.outputs * 4,
          .seconds = flops / kFlopsPerSecond + bytes / kBytesPerSecond};
}

Recording choose_recording(const LinearShape& shape, const Segments& segments, int64_t memory_left_bytes) {
  const RecordingCost hold = recording_cost(Recording::kHold, shape, segments);
  const RecordingCost replay = recording_cost(Recording::kReplay, shape, segments);
  return hold.seconds < replay.seconds && hold.bytes_kept <= memory_left_bytes ? Recording::kHold : Recording::kReplay;
}

}  // namespace ghostshard::kernels
