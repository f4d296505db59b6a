#include "examples/gpt2/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <cmath>
#include <numeric>

#include "dp/mechanism/sampler.h"

namespace ghostshard::gpt2 {

Evaluation evaluate(Gpt2& model, const Dataset& texts, int64_t microbatch) {
  const at::NoGradGuard no_grad;
  fsdp::Mesh& mesh = model.parameters().mesh();
  std::vector<int64_t> all(static_cast<size_t>(texts.units()));
  std::iota(all.begin(), all.end(), 0);
  // Per text: loss l and tokens k. The mean is sum(l)/sum(k), a ratio; its variance by the delta method needs the
  // sums of l², l·k and k².
  const at::Tensor sums = at::zeros({5}, at::kDouble);
  double* s = sums.data_ptr<double>();
  const auto resident = model.resident();
  for (const auto& units : dp::deal(all, microbatch, texts.row_counts(), mesh.data_rank(), mesh.data_size())) {
    const TokenBatch batch = texts.batch(units);
    const at::Tensor losses = model.row_losses(batch, nullptr).cpu();
    const float* row = losses.const_data_ptr<float>();
    for (int64_t u = 0; u < batch.units(); ++u) {
      double loss = 0;
      for (int64_t t = batch.loss_segments->begin(u); t < batch.loss_segments->end(u); ++t) loss += row[t];
      const auto tokens = static_cast<double>(batch.loss_segments->length(u));
      s[0] += loss;
      s[1] += tokens;
      s[2] += loss * loss;
      s[3] += loss * tokens;
      s[4] += tokens * tokens;
    }
  }
  if (mesh.model_rank() != 0) sums.zero_();  // model peers saw the same texts
  if (mesh.world_size() > 1) mesh.control().all_reduce_sum(sums);
  Evaluation result;
  if (s[1] == 0) return result;
  const double mean = s[0] / s[1];
  const auto texts_count = static_cast<double>(texts.units());
  const double residual = std::max(0.0, s[2] - 2 * mean * s[3] + mean * mean * s[4]);
  result.loss = mean;
  result.standard_error = std::sqrt(residual * texts_count / std::max(1.0, texts_count - 1)) / s[1];
  return result;
}

}  // namespace ghostshard::gpt2
