// AdamW with moments of 8 or 16 bits (kernels/quantised_moments.h), and AdamW that knows how noisy its gradients are.
//
// Everything in dp/optimizers/ takes what fsdp::Optimizer takes, gradients and public numbers: it includes neither
// dp/recording nor dp/mechanism, so no un-noised sum can reach it (tests/python/test_layers.py). What it computes from
// a PrivateGradient is post-processing.
#pragma once

#include <memory>
#include <optional>

#include "fsdp/granule.h"
#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::dp {

// What a model's parameters have to keep together so that 8-bit moments do not depend on the ranks: elements that share
// a scale.
fsdp::Granule eight_bit_granule();

enum class MomentBits { kEight, kSixteen, kThirtyTwo };

struct CodedAdamWOptions {
  fsdp::AdamWOptions rule;
  MomentBits bits = MomentBits::kEight;
  // Parameters of fewer elements, whose scales and padding would not pay, have float32 moments instead of 8 bits.
  int64_t least_coded = 4096;
  // Subtracts the gradients' error variance F (set_error_variance) from the corrected second moment, but leaves at
  // least this much of it, relative to F; > 0. The step then is the one that AdamW would take without noise where the
  // signal is larger than the noise, and up to 1/sqrt(floor) times as long where it is not (arXiv:2304.11208). Results
  // are mixed: 2304.11208 reports gains on text and images, arXiv:2511.07843 none once the learning rate is tuned.
  std::optional<double> subtract_above;
};

// chosen: as for fsdp/optimizer.h's. rule(): "adamw8bit", "adamw16bit" or "adamw", with "_corrected" behind it if there
// is subtract_above. Without an error variance they are AdamW. Throws std::invalid_argument for options as make_adamw
// does, and, naming the parameter, if a shard boundary cuts 256 elements that share a scale: give such parameters
// eight_bit_granule() or a multiple of it.
std::unique_ptr<fsdp::Optimizer> make_coded_adamw(fsdp::ShardedModel& model, const CodedAdamWOptions& options,
                                                  const fsdp::Chosen& chosen = nullptr);

}  // namespace ghostshard::dp
