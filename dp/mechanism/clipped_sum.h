// A rank's clipped, un-noised contribution to one logical batch.
//
// Move-only and unreadable: a Clipper of the plan makes it and adds to it. The plan's GaussianMechanism alone reads it,
// and adds noise before anything leaves the rank. There is no accessor, on purpose; tests/compile_fail proves it.
#pragma once

#include <memory>

#include "dp/mechanism/run_key.h"
#include "dp/mechanism/step_terms.h"
#include "fsdp/reduce_scatter.h"

namespace ghostshard::dp {

class GaussianMechanism;

class ClippedSum {
 public:
  ClippedSum(ClippedSum&&) noexcept = default;
  ClippedSum& operator=(ClippedSum&&) noexcept = default;
  ClippedSum(const ClippedSum&) = delete;
  ClippedSum& operator=(const ClippedSum&) = delete;

 private:
  friend class Clipper;
  friend class GaussianMechanism;
  ClippedSum(std::shared_ptr<fsdp::GradientBuffers> sums, const StepTerms& terms, uint64_t plan)
      : sums_(std::move(sums)), terms_(terms), plan_(plan) {}

  std::shared_ptr<fsdp::GradientBuffers> sums_;  // null once consumed
  StepTerms terms_;                              // its bound, its noise and its charge
  uint64_t plan_;                                // the plan whose terms they are
  bool unfinished_ = false;                      // a microbatch is added in part
  at::Tensor centred_count_;                     // float64 [1]; undefined unless the terms have noise for it
  // If parts are streamed: the mechanism that reduces them, and the step they are charged as. Null otherwise.
  GaussianMechanism* mechanism_ = nullptr;
  StepId step_;
  uint64_t serial_ = 0;  // of this sum alone
};

}  // namespace ghostshard::dp
