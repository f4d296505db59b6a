// The end of each step: a look for a signal, and a checkpoint if one is due.
#pragma once

#include "examples/gpt2/checkpointing.h"
#include "examples/gpt2/course.h"
#include "examples/gpt2/finetune.h"
#include "examples/gpt2/observer.h"
#include "examples/gpt2/stop_signal.h"

namespace ghostshard::gpt2 {

class Keeper {
 public:
  // All must outlive it.
  Keeper(StopSignal& stop, Checkpointing& checkpoints, fsdp::Mesh& mesh)
      : stop_(stop), checkpoints_(checkpoints), mesh_(mesh) {}

  // kStopped: a signal to any rank asked for it, and there is a checkpoint of this step. fsdp::AgreedFailure if the run
  // was to end with a checkpoint that cannot be written. A collective.
  Ending after(int64_t steps_done, const Course& course, int64_t planned_steps, Observer& observer) const;

 private:
  bool stop_wanted() const;

  StopSignal& stop_;
  Checkpointing& checkpoints_;
  fsdp::Mesh& mesh_;
};

}  // namespace ghostshard::gpt2
