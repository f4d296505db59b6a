// What all ranks of a run, and all sessions of it, must have alike.
//
// Each rank is started by a command of its own and reads files of its own. If they differ (another noise multiplier,
// another clip norm, another file of as many texts, another version), each rank still runs, and the ledger, which rank
// 0 writes, tells of rank 0 alone: noise too small on the others' slices, a unit counted on two ranks. So the ranks
// compare, before anything is written and before any collective whose course depends on an option.
//
// A run that is resumed must be the one that began. What binds it stands in the ledger's header, the first line that is
// written, and is compared at every resume, whether or not there is a checkpoint.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dp/mechanism/run_key.h"
#include "fsdp/mesh.h"

namespace ghostshard::dp {

struct Part {
  enum class Binds {
    kRanks,        // the ranks of one session; a resume may change it
    kRun,          // the run: the value stands in the ledger's header, which is public
    kRunInSecret,  // the run too, but the value is not public, even as a digest: whoever knows all of the data but one
                   // text could try texts until the digest fits. The header has a tag of it under the run's key, and
                   // only if that key can come again: without the key a tag can be neither made nor tried.
  };
  std::string name;   // as a sentence names it: "--clip-norm", "the texts in --data"
  std::string value;  // its text, or a digest of its content (dp/run/digest.h)
  Binds binds = Binds::kRanks;
};

// Every rank's parts against rank 0's. AgreedFailure (a caller's mistake) with the same sentence on every rank, naming
// the parts that differ and the ranks where they do. A collective over control().
void agree_on(fsdp::Mesh& mesh, const std::vector<Part>& parts);

// For the ledger's header, under "binding": {"run": {name: value}, "run_in_secret": {name: tag}}.
nlohmann::json binding_header(const std::vector<Part>& parts, const RunKey& key);

// The parts against the header that the run began with. key: the run's own under its first run id, if it came again;
// without it the secret parts cannot be compared. std::invalid_argument naming the first part that differs, or saying
// that the header binds nothing (an older version wrote it).
void check_binding(const nlohmann::json& header, const std::vector<Part>& parts, const RunKey* key);

}  // namespace ghostshard::dp
