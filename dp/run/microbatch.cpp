#include "dp/run/microbatch.h"

namespace ghostshard::dp {
namespace {

at::Tensor backward(const LossOfMicrobatch& loss, const RecorderPtr& recorder) {
  at::Tensor sum = loss(recorder);
  TORCH_CHECK_VALUE(sum.defined() && sum.numel() == 1, "a loss must be one number, the sum over the units given");
  sum.backward();
  return sum.detach();
}

}  // namespace

at::Tensor add_microbatch(Clipper& clipper, ClippedSum& sum, int64_t units, const LossOfMicrobatch& loss) {
  const auto tape = clipper.record(units);
  at::Tensor first = backward(loss, tape);
  if (clipper.second_pass(sum, tape)) backward(loss, tape);
  clipper.add(sum, tape);
  return first;
}

}  // namespace ghostshard::dp
