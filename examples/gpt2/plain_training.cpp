#include "dp/run/nonprivate.h"
#include "examples/gpt2/training.h"

namespace ghostshard::gpt2 {
namespace {

// Without privacy the batches may follow the seed, so that a run can be repeated.
dp::RunKey seeded_key(uint64_t seed) {
  std::array<uint8_t, 32> bytes{};
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(seed >> (8 * i));
  return dp::RunKey::from_bytes(bytes, dp::RunId{});
}

}  // namespace

void forward_and_backward(const Training& t, const TokenBatch& batch, const dp::RecorderPtr& recorder) {
  const at::Tensor loss = t.model.summed_unit_losses(batch, recorder);
  loss.backward();
  t.observer.add_microbatch(loss, batch.units());
}

Ending train_without_privacy(const Training& t, fsdp::Optimizer& optimizer) {
  const fsdp::Mesh& mesh = t.model.parameters().mesh();
  const dp::RunKey key = seeded_key(t.options.seed);
  const auto sampler =
      dp::nonprivate_sampler(key, t.in.data->units(), t.options.expected_batch, mesh.data_rank(), mesh.data_size());
  dp::PlainAccumulator accumulator(t.model.parameters(), static_cast<double>(t.options.expected_batch));

  t.observer.before_first(std::nullopt);
  for (int64_t step = t.course.first; step < t.course.last; ++step) {
    t.observer.begin_step();
    accumulator.begin();
    {
      const auto resident = t.model.resident();
      for (const auto& units : sampler.draw_local({step}, t.options.microbatch, t.in.data->row_counts())) {
        forward_and_backward(t, t.in.data->batch(units), accumulator.recorder());
      }
    }
    optimizer.step(accumulator.reduce(), t.in.rate.at(step));
    t.observer.after(step + 1, std::nullopt);
    if (t.keeper.after(step + 1, t.course, t.in.steps, t.observer) == Ending::kStopped) return Ending::kStopped;
  }
  return Ending::kDone;
}

}  // namespace ghostshard::gpt2
