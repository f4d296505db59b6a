// The value that a step releases: the noised mean of a logical batch, this rank's slices. The guarantee covers
// everything that is computed from it; the ledger already holds its cost.
#pragma once

#include <memory>

#include "fsdp/reduce_scatter.h"

namespace ghostshard::dp {

class PrivateGradient {
 public:
  PrivateGradient(PrivateGradient&&) noexcept = default;
  PrivateGradient& operator=(PrivateGradient&&) noexcept = default;
  PrivateGradient(const PrivateGradient&) = delete;
  PrivateGradient& operator=(const PrivateGradient&) = delete;

  const fsdp::ShardBuffers& slices() const { return *slices_; }

 private:
  friend class GaussianMechanism;
  explicit PrivateGradient(std::shared_ptr<fsdp::ShardBuffers> slices) : slices_(std::move(slices)) {}
  std::shared_ptr<fsdp::ShardBuffers> slices_;
};

}  // namespace ghostshard::dp
