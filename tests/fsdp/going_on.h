// An optimizer that goes on from a checkpoint of another mesh and other granules, beside one that was never stopped.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "fsdp/checkpoint.h"
#include "tests/fsdp/matrix_steps.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::fsdp {

// optimizer: the name that the checkpoint must have of it.
inline void expect_to_go_on_to_the_bit(const Make& make, const std::string& optimizer) {
  const Weights expected = weights_after({.shard = 2}, some_blocks(), make, 5);
  for (const auto& [written_by, loaded_by] :
       {std::pair{MeshShape{.shard = 2}, MeshShape{.shard = 3}}, std::pair{MeshShape{.shard = 4}, MeshShape{}}}) {
    const tests::TemporaryFolder folder;
    tests::run_mesh(written_by, [&](Mesh& mesh) {
      ShardedModel model(mesh, some_blocks());
      for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, start_of(*parameter));
      const auto made = make(model);
      take_steps(model, *made, 0, 3);
      write_checkpoint(model, *made, folder.path(), 3, {});
    });
    tests::run_mesh(loaded_by, [&](Mesh& mesh) {
      ShardedModel model(mesh, some_blocks(Granule::whole()));
      const auto made = make(model);
      const Checkpoint checkpoint = list_checkpoints(folder.path()).at(0);
      EXPECT_EQ(checkpoint.optimizer, optimizer);
      load_checkpoint(model, *made, checkpoint);
      take_steps(model, *made, 3, 5);
      for (const auto& parameter : model.parameters()) {
        EXPECT_TRUE(at::equal(model.whole_parameter(*parameter), expected.at(parameter->name()))) << parameter->name();
      }
    });
  }
}

}  // namespace ghostshard::fsdp
