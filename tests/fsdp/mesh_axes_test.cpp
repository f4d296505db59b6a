// Where ranks stand on the axes replicate × shard × model, and which ranks each communicator joins.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "fsdp/mesh.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_mesh;

class MeshAxes : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, MeshAxes,
                         testing::Values("1x1x1", "1x2x1", "2x1x1", "1x1x2", "2x2x1", "1x2x2", "2x1x2", "1x4x1",
                                         "2x2x2", "1x8x1", "4x2x1"),
                         [](const auto& test) { return "mesh_" + std::string(test.param); });

TEST_P(MeshAxes, place_every_rank_once_with_model_innermost) {
  const MeshShape shape = MeshShape::parse(GetParam());
  std::mutex mutex;
  std::set<std::vector<int64_t>> places;
  run_mesh(shape, [&](Mesh& mesh) {
    EXPECT_EQ(mesh.shape(), shape);
    EXPECT_EQ(mesh.world_size(), shape.ranks());
    EXPECT_EQ(mesh.data_size(), shape.replicate * shape.shard);
    EXPECT_EQ((mesh.replica() * shape.shard + mesh.shard_rank()) * shape.model + mesh.model_rank(), mesh.rank());
    EXPECT_EQ(mesh.replica() * shape.shard + mesh.shard_rank(), mesh.data_rank());
    EXPECT_LT(mesh.replica(), shape.replicate);
    EXPECT_LT(mesh.shard_rank(), shape.shard);
    EXPECT_LT(mesh.model_rank(), shape.model);
    const std::lock_guard lock(mutex);
    places.insert({mesh.replica(), mesh.shard_rank(), mesh.model_rank()});
  });
  EXPECT_EQ(static_cast<int64_t>(places.size()), shape.ranks());
}

// Each rank sends its number. The numbers received show which ranks a communicator joins, in their order.
TEST_P(MeshAxes, join_the_ranks_that_differ_on_one_axis_alone) {
  run_mesh(MeshShape::parse(GetParam()), [](Mesh& mesh) {
    const MeshShape& s = mesh.shape();
    const auto heard = [&](Communicator& communicator) {
      at::Tensor out = at::full({communicator.size()}, -1, at::kLong);
      communicator.all_gather(out, at::full({1}, mesh.rank(), at::kLong))->wait();
      return std::vector<int64_t>(out.const_data_ptr<int64_t>(), out.const_data_ptr<int64_t>() + out.numel());
    };
    const auto rank_at = [&](int64_t replica, int64_t shard, int64_t model) {
      return (replica * s.shard + shard) * s.model + model;
    };
    std::vector<int64_t> along_shard, along_replicate, along_model, all;
    for (int64_t i = 0; i < s.shard; ++i) along_shard.push_back(rank_at(mesh.replica(), i, mesh.model_rank()));
    for (int64_t i = 0; i < s.replicate; ++i) {
      along_replicate.push_back(rank_at(i, mesh.shard_rank(), mesh.model_rank()));
    }
    for (int64_t i = 0; i < s.model; ++i) along_model.push_back(rank_at(mesh.replica(), mesh.shard_rank(), i));
    for (int64_t i = 0; i < s.ranks(); ++i) all.push_back(i);
    EXPECT_EQ(heard(mesh.gather()), along_shard);
    EXPECT_EQ(heard(mesh.reduce()), along_shard);
    EXPECT_EQ(heard(mesh.replicate()), along_replicate);
    EXPECT_EQ(heard(mesh.model()), along_model);
    EXPECT_EQ(heard(mesh.control()), all);
  });
}

TEST(MeshShape, reads_what_it_writes) {
  EXPECT_EQ(MeshShape::parse("2x4x3"), (MeshShape{.replicate = 2, .shard = 4, .model = 3}));
  EXPECT_EQ(MeshShape::parse("2x4x3").text(), "2x4x3");
}

class WrongShapes : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, WrongShapes,
                         testing::Values("", "2", "2x2", "2x2x", "2x2x2x2", "0x2x2", "2x-1x2", "2x2x2 ", " 1x1x1",
                                         "1x1xa", "1X1X1", "9999999x1x1", "99999999999999999999x1x1"));

TEST_P(WrongShapes, are_refused_with_the_text) {
  try {
    MeshShape::parse(GetParam());
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("got '" + std::string(GetParam()) + "'"), std::string::npos)
        << error.what();
  }
}

TEST(MeshShape, must_have_as_many_places_as_there_are_ranks) {
  const tests::LocalStore store;
  for (const auto& shape : {MeshShape{.replicate = 2, .shard = 2}, MeshShape{}, MeshShape{.shard = -2, .model = -1}}) {
    try {
      Mesh::connect("127.0.0.1", store.port(), 0, 2, false, std::chrono::seconds(1), shape);
      FAIL() << "accepted " << shape.text();
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("(2), got " + shape.text()), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(Mesh::from_environment(std::chrono::seconds(1), MeshShape{.shard = 2}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::fsdp
