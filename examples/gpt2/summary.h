// The sentences that rank 0 prints before the first step (standard error) and at the end (standard output).
#pragma once

#include "dp/run/private_run.h"
#include "examples/gpt2/observer.h"

namespace ghostshard::gpt2 {

// run: null without privacy.

// Model, data and budget.
void announce(const Options& options, const Inputs& in, Gpt2& model, const dp::PrivateRun* run);
void announce_resumption(const dp::FoundRun& found, const dp::Course& course, const dp::PrivateRun* run);

void summarize_stop(const dp::Course& course, const dp::PrivateRun* run);
// Losses, time, an end before the planned one, the files.
void summarize(const Options& options, const dp::Course& course, const Observer& observer, const dp::PrivateRun* run);

}  // namespace ghostshard::gpt2
