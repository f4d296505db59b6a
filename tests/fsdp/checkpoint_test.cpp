#include "fsdp/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <mutex>

#include "fsdp/agree.h"
#include "fsdp/safetensors.h"
#include "tests/support/ranks.h"
#include "tests/support/synchronised.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::fsdp {
namespace {

using testing::HasSubstr;
using tests::run_ranks;

std::vector<BlockSpec> some_blocks(bool frozen = true) {
  return {{"a", {{"a.w", {23, 7}}, {"a.b", {7}}, {"a.f", {5}, !frozen}}},
          {"b", {{"b/b@1", {101}}, {"b.w", {3, 3, 3}}}},
          {"c",
           {{"c.columns", {6, 8}, true, {.extent = 1, .sections = 2}},
            {"c.rows", {4, 5}, true, {.extent = 0}},
            {"c.frozen", {8, 3}, false, {.extent = 0}}}}};
}

at::Tensor wave(const Parameter& parameter, double step) {
  return (at::arange(parameter.whole_numel(), at::kFloat) * 0.61F + parameter.id() + step)
      .sin()
      .view(parameter.whole_shape());
}

std::unique_ptr<Optimizer> make(const std::string& rule, ShardedModel& model) {
  if (rule == "sgd") return make_sgd(model, {});
  if (rule == "momentum") return make_sgd(model, {.momentum = 0.9, .weight_decay = 0.1});
  return make_adamw(model, {.weight_decay = 0.1});
}

void take_steps(ShardedModel& model, Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    ShardBuffers gradient(model);
    for (const auto& group : model.groups()) {
      if (!group->trainable()) continue;
      for (const OwnedRange& range : group->owned()) {
        const Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
        const at::Tensor whole = wave(parameter, 3.0 * static_cast<double>(step)).view({-1});
        for (const ElementRun& run : parameter.whole_runs(range.first, range.count)) {
          gradient.shard(*group)
              .narrow(0, range.shard_offset + run.first - range.first, run.count)
              .copy_(whole.narrow(0, run.whole_first, run.count));
        }
      }
    }
    optimizer.step(gradient, 0.05);
  }
}

using Weights = std::map<std::string, at::Tensor>;

Weights whole(ShardedModel& model) {
  Weights weights;
  for (const auto& parameter : model.parameters()) weights[parameter->name()] = model.whole_parameter(*parameter);
  return weights;
}

void expect_same(const Weights& a, const Weights& b) {
  for (const auto& [name, value] : a) EXPECT_TRUE(at::equal(value, b.at(name))) << name;
}

class Checkpoints : public testing::Test {
 protected:
  // Five steps with a checkpoint after the third; the weights in the end.
  Weights five_steps(const std::string& rule, int64_t ranks) { return five_steps(rule, MeshShape{.shard = ranks}); }
  Weights five_steps(const std::string& rule, const MeshShape& shape) {
    Weights result;
    std::mutex mutex;
    tests::run_mesh(shape, [&](Mesh& mesh) {
      ShardedModel model(mesh, some_blocks());
      for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, wave(*parameter, 0.5));
      const auto optimizer = make(rule, model);
      take_steps(model, *optimizer, 0, 3);
      write_checkpoint(model, *optimizer, folder_, 3, {{"who", "a test"}});
      take_steps(model, *optimizer, 3, 5);
      const Weights mine = whole(model);
      const std::lock_guard lock(mutex);
      result = mine;
    });
    return result;
  }

  std::string failure_of_loading(const std::string& rule = "adamw", bool frozen = true) {
    std::string message;
    std::mutex mutex;
    run_ranks(2, [&](Mesh& mesh) {
      ShardedModel model(mesh, some_blocks(frozen));
      const auto optimizer = make(rule, model);
      try {
        load_checkpoint(model, *optimizer, list_checkpoints(folder_).at(0));
        ADD_FAILURE() << "it was loaded";
      } catch (const AgreedFailure& failure) {
        EXPECT_TRUE(failure.callers_mistake()) << failure.what();
        const std::lock_guard lock(mutex);
        message = failure.what();
      }
    });
    return message;
  }

  const tests::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

struct Layout {
  std::string rule;
  std::string written_by;
  std::string loaded_by;
};

class Layouts : public Checkpoints, public testing::WithParamInterface<Layout> {};

TEST_P(Layouts, GoOnToTheBitWhereTheCheckpointWasTaken) {
  const auto& [rule, written_by, loaded_by] = GetParam();
  const MeshShape writers = MeshShape::parse(written_by);
  const Weights undisturbed = five_steps(rule, writers);
  const auto found = list_checkpoints(folder_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 3);
  EXPECT_EQ(found[0].about.at("who"), "a test");
  EXPECT_EQ(found[0].world_size, writers.ranks());
  EXPECT_EQ(found[0].files.size(), static_cast<size_t>(writers.ranks()));
  tests::run_mesh(MeshShape::parse(loaded_by), [&](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    const auto optimizer = make(rule, model);
    load_checkpoint(model, *optimizer, found[0]);
    EXPECT_EQ(optimizer->steps(), 3);
    take_steps(model, *optimizer, 3, 5);
    // The rules act on each element alone, so another layout changes no bit.
    expect_same(undisturbed, whole(model));
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Layouts,
                         testing::Values(Layout{"adamw", "1x1x1", "1x1x1"}, Layout{"adamw", "1x2x1", "1x2x1"},
                                         Layout{"adamw", "1x2x1", "1x1x1"}, Layout{"adamw", "1x4x1", "1x3x1"},
                                         Layout{"adamw", "1x1x1", "1x4x1"}, Layout{"momentum", "1x3x1", "1x2x1"},
                                         Layout{"sgd", "1x2x1", "1x4x1"}, Layout{"adamw", "2x2x1", "1x2x1"},
                                         Layout{"adamw", "1x2x1", "2x1x2"}, Layout{"adamw", "1x2x2", "1x1x1"},
                                         Layout{"momentum", "1x1x4", "2x2x2"}, Layout{"adamw", "2x2x2", "1x1x2"}),
                         [](const auto& c) {
                           return c.param.rule + "_from_" + c.param.written_by + "_to_" + c.param.loaded_by;
                         });

// A mesh with replicas and cut parameters writes every element once, and any other mesh reads it.
class Meshes : public Checkpoints, public testing::WithParamInterface<std::pair<const char*, const char*>> {};

std::vector<BlockSpec> blocks_with_cut_parameters() {
  return {{"a",
           {{"a.columns", {6, 8}, true, {.extent = 1, .sections = 2}},
            {"a.rows", {8, 5}, true, {.extent = 0}},
            {"a.both", {7}}}}};
}

TEST_P(Meshes, ReadWhatAnotherOneWrote) {
  using tests::run_mesh;
  Weights written;
  std::mutex mutex;
  run_mesh(MeshShape::parse(GetParam().first), [&](Mesh& mesh) {
    ShardedModel model(mesh, blocks_with_cut_parameters());
    for (const auto& parameter : model.parameters()) {
      int64_t count = 1;
      for (const int64_t extent : parameter->whole_shape()) count *= extent;
      model.set_parameter(*parameter,
                          (at::arange(count, at::kFloat) + 100.0 * parameter->id()).view(parameter->whole_shape()));
    }
    const auto optimizer = make("adamw", model);
    // The moment of each element is its weight.
    for (const auto& group : model.groups()) {
      for (const OwnedRange& range : group->owned()) {
        optimizer->write("first_moment", *group, range, group->shard().narrow(0, range.shard_offset, range.count));
      }
    }
    optimizer->set_steps(7);
    write_checkpoint(model, *optimizer, folder_, 7, {});
    const Weights mine = whole(model);
    const std::lock_guard lock(mutex);
    written = mine;
  });
  run_mesh(MeshShape::parse(GetParam().second), [&](Mesh& mesh) {
    ShardedModel model(mesh, blocks_with_cut_parameters());
    const auto optimizer = make("adamw", model);
    load_checkpoint(model, *optimizer, list_checkpoints(folder_).at(0));
    expect_same(written, whole(model));
    for (const auto& group : model.groups()) {
      for (const OwnedRange& range : group->owned()) {
        const at::Tensor weight = group->shard().narrow(0, range.shard_offset, range.count);
        EXPECT_TRUE(at::equal(optimizer->read("first_moment", *group, range), weight))
            << "a moment is not that of its weight any more";
      }
    }
    EXPECT_EQ(optimizer->steps(), 7);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Meshes,
                         testing::Values(std::pair{"2x1x1", "1x1x1"}, std::pair{"1x1x2", "1x3x1"},
                                         std::pair{"1x2x1", "1x1x2"}, std::pair{"1x2x2", "2x1x1"},
                                         std::pair{"2x1x2", "1x2x2"}),
                         [](const auto& c) { return std::string(c.param.first) + "_to_" + c.param.second; });

// A checkpoint has its name only once all of it is on the disk: after a crash, what has the name is whole.
TEST_F(Checkpoints, AreOnTheDiskBeforeTheyHaveTheirName) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make("momentum", model);
  tests::synchronised().clear();
  write_checkpoint(model, *optimizer, folder_, 3, {});
  const auto& calls = tests::synchronised();
  const auto path = list_checkpoints(folder_).at(0).path;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    const std::string name = file.path().filename().string();
    const auto found = std::find_if(calls.begin(), calls.end(), [&](const tests::Synchronised& call) {
      return call.name.starts_with(name) && call.bytes == static_cast<int64_t>(file.file_size());
    });
    EXPECT_NE(found, calls.end()) << name;
  }
  const auto folders = [&](const std::string& name) {
    return std::count_if(calls.begin(), calls.end(),
                         [&](const tests::Synchronised& call) { return call.folder && call.name.starts_with(name); });
  };
  EXPECT_GE(folders(path.filename().string()), 2) << "each file's name";
  ASSERT_FALSE(calls.empty());
  EXPECT_TRUE(calls.back().folder && calls.back().name == folder_.filename()) << "the checkpoint's name, last";
}

TEST_F(Checkpoints, APartialFolderIsNoCheckpointAndGoesWithTheNextPruning) {
  five_steps("sgd", 1);
  const auto partial = folder_ / "step-000000000009.partial";
  std::filesystem::copy(list_checkpoints(folder_)[0].path, partial);
  EXPECT_EQ(list_checkpoints(folder_).size(), 1U);
  prune_checkpoints(folder_, 5);
  EXPECT_FALSE(std::filesystem::exists(partial));
  EXPECT_EQ(list_checkpoints(folder_).size(), 1U);
}

TEST_F(Checkpoints, PruningKeepsTheNewest) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make("sgd", model);
  for (const int64_t step : {9, 10, 100, 11}) write_checkpoint(model, *optimizer, folder_, step, {});
  prune_checkpoints(folder_, 2);
  const auto left = list_checkpoints(folder_);
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].step, 11);
  EXPECT_EQ(left[1].step, 100);
}

TEST_F(Checkpoints, WritingAStepAgainReplacesIt) {
  five_steps("sgd", 1);
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make("sgd", model);
  write_checkpoint(model, *optimizer, folder_, 3, {{"who", "another"}});
  ASSERT_EQ(list_checkpoints(folder_).size(), 1U);
  EXPECT_EQ(list_checkpoints(folder_)[0].about.at("who"), "another");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Checkpoints, NoFolderHoldsNone) { EXPECT_TRUE(list_checkpoints(folder_ / "missing").empty()); }

TEST_F(Checkpoints, AChangedByteIsNamedWithItsFile) {
  five_steps("adamw", 3);
  const auto file = folder_ / "step-000000000003" / "rank-00002-of-00003.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  stream.put('\x41');
  stream.close();
  EXPECT_THAT(failure_of_loading(), testing::AllOf(HasSubstr(file.string()), HasSubstr("is damaged")));
}

TEST_F(Checkpoints, AMissingFileIsNamed) {
  five_steps("adamw", 2);
  std::filesystem::remove(folder_ / "step-000000000003" / "rank-00001-of-00002.safetensors");
  EXPECT_THAT(failure_of_loading(), HasSubstr("rank-00001-of-00002.safetensors: the checkpoint's file must be there"));
}

TEST_F(Checkpoints, AFolderWithoutManifestIsRefused) {
  five_steps("adamw", 2);
  std::filesystem::remove(folder_ / "step-000000000003" / "checkpoint.json");
  EXPECT_THAT([&] { (void)list_checkpoints(folder_); },
              testing::ThrowsMessage<std::invalid_argument>(HasSubstr("the manifest must be there")));
}

TEST_F(Checkpoints, AnotherOptimizerOrModelIsRefused) {
  five_steps("adamw", 2);
  EXPECT_THAT(failure_of_loading("sgd"), HasSubstr("the optimizer must be the one it was taken with, adamw, is sgd"));
  EXPECT_THAT(failure_of_loading("adamw", false), HasSubstr("the model must have the parameters"));
}

TEST_F(Checkpoints, OtherOptionsOfTheOptimizerAreRefused) {
  five_steps("momentum", 2);
  EXPECT_THAT(failure_of_loading("sgd"), HasSubstr("its optimizer's options must be those of this run"));
}

// A disk that fills up: the limit holds for each file, and a write fails because the signal is ignored.

TEST_F(Checkpoints, AFullDiskIsEveryRanksFailureAndLeavesTheOlderOneAlone) {
  five_steps("adamw", 2);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{1000, before.rlim_max};
  std::atomic<int> failed{0};
  run_ranks(2, [&](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    const auto optimizer = make("adamw", model);
    mesh.control().barrier();
    if (mesh.rank() == 0) ::setrlimit(RLIMIT_FSIZE, &limit);
    mesh.control().barrier();
    try {
      write_checkpoint(model, *optimizer, folder_, 4, {});
      ADD_FAILURE() << "it was written";
    } catch (const AgreedFailure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("File too large"));
      EXPECT_FALSE(failure.callers_mistake());
      ++failed;
    }
    mesh.control().barrier();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(failed, 2);
  ASSERT_EQ(list_checkpoints(folder_).size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "a partial folder was left";
}

TEST_F(Checkpoints, AFileInPlaceOfTheFolderIsEveryRanksFailure) {
  std::ofstream(folder_ / "file") << "x";
  std::atomic<int> failed{0};
  run_ranks(2, [&](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    const auto optimizer = make("sgd", model);
    EXPECT_THROW(write_checkpoint(model, *optimizer, folder_ / "file", 1, {}), AgreedFailure);
    ++failed;
  });
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace ghostshard::fsdp
