// A rank's clipped, un-noised contribution to one logical batch.
//
// Move-only and unreadable: a Clipper of the plan makes it and adds to it, the plan's GaussianMechanism alone opens
// it, adding noise before anything leaves the rank. There is no accessor, on purpose; tests/compile_fail proves it.
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
  StepTerms terms_;                              // what bounds it, and what it is to be noised with and charged as
  uint64_t plan_;                                // whose terms they are
  bool unfinished_ = false;                      // a microbatch is added in part
  // Where parts are reduced with every microbatch: by whom, and as what step. Null otherwise.
  GaussianMechanism* mechanism_ = nullptr;
  StepId step_;
  uint64_t serial_ = 0;  // of this sum alone
};

}  // namespace ghostshard::dp
