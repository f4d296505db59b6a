#include "kernels/recording.h"

namespace ghostshard::kernels {
namespace {

constexpr double kFloat32Bytes = 4;
constexpr double kSoftmax = 12;  // of a logit, in the time that a row's element takes: measured on a CPU, 3 ns

}  // namespace

// Holding costs the same for each element of the held matrices, whatever the number of rows; Grams cost rows·(d + p)
// for each row. So long units are held unless memory forbids it, and short ones are replayed.
RecordingCost recording_cost(Recording way, const LinearShape& shape, const Segments& segments,
                             const MachineRates& rates) {
  if (way == Recording::kTwoPass || way == Recording::kRecompute) {
    RecordingCost cost = recording_cost(Recording::kReplay, shape, segments, rates);
    const RecordingCost hold = recording_cost(Recording::kHold, shape, segments, rates);
    if (hold.seconds < cost.seconds) {
      // Panels do not leave the cache; the product is formed for the norm and again for the sum.
      const double product =
          2 * static_cast<double>(segments.rows()) * static_cast<double>(shape.inputs * shape.outputs);
      cost.flops = hold.flops + product;
      cost.seconds = hold.seconds + product / rates.product_flops;
    }
    // Two passes: forward and the inputs' gradient once more. Recomputing: forward twice more, and the softmax of its
    // logits.
    const double again = 4 * static_cast<double>(segments.rows()) * static_cast<double>(shape.inputs * shape.outputs);
    cost.flops += again;
    cost.seconds += again / rates.product_flops;
    if (way == Recording::kRecompute)
      cost.seconds +=
          2 * kSoftmax * static_cast<double>(segments.rows() * shape.outputs) * rates.seconds_per_row_element;
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
    // The products write the held gradients and the sum reads them; the norm reads them from the cache.
    const double held_bytes = kFloat32Bytes * 2 * units * matrix;
    return {.flops = product + 4 * units * matrix,
            .bytes_moved = kFloat32Bytes * row_elements + held_bytes,
            .bytes_kept = segments.units() * shape.inputs * shape.outputs * 4,
            .seconds = product / rates.product_flops + held_bytes / rates.bytes};
  }
  const double squared = static_cast<double>(segments.sum_of_squared_lengths());
  const double gram = squared * (inputs + outputs);
  const double slowdown = squared > rates.narrow_from_rows * rows ? rates.narrow_slowdown : 1;
  return {.flops = gram + product,
          // Row norms, Grams and sum read the rows; both Grams are written and read again.
          .bytes_moved = kFloat32Bytes * (3 * row_elements + 4 * squared + matrix),
          // Autograd holds the inputs until backward anyway, and memory is shortest then; g comes on top.
          .bytes_kept = segments.rows() * shape.outputs * 4,
          .seconds = product / rates.product_flops + slowdown * gram / rates.gram_flops +
                     row_elements * rates.seconds_per_row_element};
}

Recording choose_recording(const LinearShape& shape, const Segments& segments, int64_t memory_left_bytes,
                           const MachineRates& rates) {
  const RecordingCost hold = recording_cost(Recording::kHold, shape, segments, rates);
  const RecordingCost replay = recording_cost(Recording::kReplay, shape, segments, rates);
  return hold.seconds < replay.seconds && hold.bytes_kept <= memory_left_bytes ? Recording::kHold : Recording::kReplay;
}

}  // namespace ghostshard::kernels
