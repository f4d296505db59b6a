// The loop over a run's steps: with privacy (private_training.cpp) or, to compare, without (plain_training.cpp).
//
// The guarantee rests on private_training.cpp alone. Its order, step by step: the draw of this step and attempt; each
// microbatch's clipped gradients into one sum; release (ledger line, noise, reduction); the optimizer, on the private
// gradient and nothing else; the release's price added to the epsilon that is shown.
#pragma once

#include "accountant/ledger.h"
#include "dp/mechanism/optimizer.h"
#include "dp/run/agreement.h"
#include "examples/gpt2/course.h"
#include "examples/gpt2/keeper.h"
#include "examples/gpt2/observer.h"
#include "examples/gpt2/step_model.h"

namespace ghostshard::gpt2 {

// The ledger of a new run, its header written: the plan, the key's public facts and the report's. For rank 0, before
// the first step. std::runtime_error if it cannot be written.
accountant::LedgerWriter create_ledger(const Options& options, const Inputs& in, Gpt2& model,
                                       const std::vector<dp::Part>& parts);
// The ledger of a resumed run, to be continued. For rank 0. std::runtime_error if it is no longer as it was read.
accountant::LedgerWriter reopen_ledger(const Options& options, const Resumption& resumed);

// All must outlive the loop.
struct Training {
  const Options& options;
  const Inputs& in;
  const Course& course;
  Gpt2& model;
  Observer& observer;
  const Keeper& keeper;
};

// step: the plan that the model was built for. ledger: rank 0's, null elsewhere. A collective.
Ending train_privately(const Training& training, const PlannedStep& step, accountant::LedgerWriter* ledger,
                       dp::PrivateOptimizer& optimizer);
// A collective.
Ending train_without_privacy(const Training& training, fsdp::Optimizer& optimizer);

// One forward and one backward of a microbatch. The step is made of exactly the rows that the recorder saw.
void forward_and_backward(const Training& training, const TokenBatch& batch, const dp::RecorderPtr& recorder);

}  // namespace ghostshard::gpt2
