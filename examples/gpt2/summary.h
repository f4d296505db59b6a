// The sentences that rank 0 prints before the first step (standard error) and at the end (standard output).
#pragma once

#include <optional>

#include "accountant/ledger.h"
#include "examples/gpt2/checkpointing.h"
#include "examples/gpt2/course.h"
#include "examples/gpt2/observer.h"

namespace ghostshard::gpt2 {

// Model, data and budget.
void announce(const Options& options, const Inputs& in, Gpt2& model);
void announce_resumption(const Inputs& in, const Resumption& resumed, int64_t last);

void summarize_stop(const Inputs& in, const Checkpointing& checkpoints);
// Losses, time, an end before the planned one, the files. ledger: none without privacy.
void summarize(const Options& options, const Inputs& in, const Course& course, const Observer& observer,
               const std::optional<accountant::LedgerWriter>& ledger);

}  // namespace ghostshard::gpt2
