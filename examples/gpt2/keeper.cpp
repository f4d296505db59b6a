#include "examples/gpt2/keeper.h"

#include <iostream>

#include "fsdp/agree.h"

namespace ghostshard::gpt2 {

bool Keeper::stop_wanted() const {
  const at::Tensor wanted = at::full({1}, stop_.requested() ? 1 : 0, at::kLong);
  if (mesh_.world_size() > 1) mesh_.control().all_reduce_max(wanted);
  return wanted.item<int64_t>() != 0;
}

Ending Keeper::after(int64_t steps_done, const Course& course, int64_t planned_steps, Observer& observer) const {
  const bool stopping = stop_wanted() && steps_done < course.last;
  if (!stopping && !checkpoints_.due(steps_done, course.last, planned_steps)) return Ending::kDone;
  const std::string reason = checkpoints_.save(steps_done);
  if (stopping) observer.finish_line();
  if (reason.empty()) return stopping ? Ending::kStopped : Ending::kDone;
  const std::string newest =
      checkpoints_.newest() ? "the newest one is of step " + std::to_string(*checkpoints_.newest()) : "there is none";
  const std::string sentence =
      "no checkpoint of step " + std::to_string(steps_done) + " could be written (" + newest + "): " + reason;
  if (stopping) throw fsdp::AgreedFailure("stopped by a signal, but " + sentence, false);
  if (mesh_.rank() == 0) std::cerr << "warning: " << sentence << "; the run goes on\n";
  return Ending::kDone;
}

}  // namespace ghostshard::gpt2
