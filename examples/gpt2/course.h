// The steps that a run, new or resumed, still has before it.
#pragma once

#include <optional>

#include "examples/gpt2/resume.h"
#include "examples/gpt2/setup.h"
#include "fsdp/mesh.h"

namespace ghostshard::gpt2 {

struct Course {
  int64_t first = 0;  // steps done before
  int64_t last = 0;
  dp::Attempts attempts;
  int64_t releases = 0;  // charged before
  KeptMetrics kept;      // on rank 0: metrics.jsonl as the run goes on from it
};

// Rank 0's find_run() on every rank; nothing for a new run. fsdp::AgreedFailure on every rank if it fails. A
// collective.
std::optional<Resumption> find_resumption(const Options& options, fsdp::Mesh& mesh);

// How far a resumed run may go.
struct Extent {
  int64_t last = 0;
  bool done = false;  // nothing is left to do
};
// For rank 0. To the last planned step, or to the last one that keeps the promised epsilon, because repeated steps are
// charged again. std::invalid_argument if that is none.
Extent extent_of(const Options& options, const Inputs& in, const Resumption& resumed);

// Fills in the course of a resumed run, with rank 0's extent on every rank; true if nothing is left to do. A
// collective.
bool settle_course(Course& course, const Resumption& resumed, const Extent& extent, fsdp::Mesh& mesh);

}  // namespace ghostshard::gpt2
