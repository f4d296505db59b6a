// Checkpoints of a sharded model and its optimizer: one file per rank, complete or not at all, for any layout.
//
//   DIR/step-000000000040/rank-00000-of-00002.safetensors   weights and optimizer states that rank 0 owns
//                         rank-00001-of-00002.safetensors
//                         checkpoint.json                    the manifest, written last
//
// Tensors are named "weight/PARAMETER@FIRST" and "KIND/PARAMETER@FIRST" (float32, flat): elements FIRST, FIRST+1, and
// so on, of the whole parameter, or numbers of a state that is not by the element (StatePiece). Nothing in the files
// depends on how the model was sharded, so another number of ranks, another mesh or other granules can read them. If
// several ranks hold the same elements (replicas, model peers), one of them writes. A parameter cut by columns over a
// model axis makes one tensor for each row, which is correct but makes long headers for very large models. All ranks
// must see the folder.
//
// A checkpoint is written into a folder "step-….partial" beside its place. Each file is written durably
// (fsdp/durable_file.h), hashed (SHA-256) and listed in the manifest, then the folder is renamed: a crash leaves the
// whole checkpoint or a partial folder that nobody takes for one. A checkpoint holds weights and the optimizer's
// states: no gradient, no activation, nothing per example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

inline constexpr const char* kCheckpointSchema = "ghostshard.checkpoint/1";

struct Checkpoint {
  struct File {
    std::string name;
    int64_t bytes = 0;
    std::string sha256;  // hex
  };
  std::filesystem::path path;
  int64_t step = 0;  // steps done
  int64_t world_size = 1;
  std::string optimizer;        // its rule
  int64_t optimizer_steps = 0;  // steps that the optimizer had taken
  std::vector<File> files;
  nlohmann::json about;  // the caller's, as given to write_checkpoint
};

// Writes folder/step-STEP and replaces a checkpoint of this step that is there already. `about` goes into the manifest;
// rank 0's value counts. A collective. AgreedFailure on every rank if one of them could not write; then the new
// checkpoint is not there or not durable, and those of other steps are as they were. std::invalid_argument unless step
// >= 0.
void write_checkpoint(ShardedModel& model, OptimizerState& optimizer, const std::filesystem::path& folder, int64_t step,
                      const nlohmann::json& about);

// The manifest of one checkpoint. Throws std::invalid_argument: path and rule.
Checkpoint read_checkpoint(const std::filesystem::path& path);

// The complete checkpoints in a folder, oldest first; none if there is no folder. Throws as read_checkpoint does.
std::vector<Checkpoint> list_checkpoints(const std::filesystem::path& folder);

// Fills weights and optimizer. One of the ranks verifies each file's hash; every element must be there exactly once. A
// collective. AgreedFailure on every rank (a caller's mistake, naming file and rule) if the checkpoint is damaged or of
// another model or optimizer; model and optimizer must then not be used any more.
void load_checkpoint(ShardedModel& model, OptimizerState& optimizer, const Checkpoint& checkpoint);

// Removes all complete checkpoints but the `keep` newest, and partial ones. For one rank. std::runtime_error with the
// system's reason.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep);

}  // namespace ghostshard::fsdp
