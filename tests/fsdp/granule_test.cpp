// Granules of parameters: how many elements they are, and that a model's shards keep them whole.
#include "fsdp/granule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/sharded_model.h"
#include "tests/support/recording_mesh.h"

namespace ghostshard::fsdp {
namespace {

using Shape = std::vector<int64_t>;

struct GranuleCase {
  const char* name;
  Granule granule;
  Shape shape;
  int64_t elements;
};
void PrintTo(const GranuleCase& c, std::ostream* out) { *out << c.name; }
class Granules : public testing::TestWithParam<GranuleCase> {};

INSTANTIATE_TEST_SUITE_P(
    , Granules,
    testing::Values(GranuleCase{"elements", Granule::elements(256), {30, 100}, 256},
                    GranuleCase{"more_elements_than_there_are", Granule::elements(256), {30}, 30},
                    GranuleCase{"a_row", Granule::rows(), {30, 7}, 7},
                    GranuleCase{"rows", Granule::rows(16), {30, 7}, 112},
                    GranuleCase{"more_rows_than_there_are", Granule::rows(31), {30, 7}, 210},
                    GranuleCase{"rows_beyond_counting", Granule::rows(int64_t{1} << 62), {30, 7}, 210},
                    GranuleCase{"rows_of_the_last_extent", Granule::rows(2), {5, 6, 4}, 8},
                    GranuleCase{"a_vector_is_one_row", Granule::rows(), {30}, 30},
                    GranuleCase{"tiles", Granule::tiles(8), {30, 64}, 512},
                    GranuleCase{"heads", Granule::heads(4), {32, 10}, 80},
                    GranuleCase{"heads_of_fused_queries_keys_and_values", Granule::heads(3 * 4), {96, 10}, 80},
                    GranuleCase{"heads_of_a_bias", Granule::heads(4), {32}, 8},
                    GranuleCase{"whole", Granule::whole(), {5, 6, 4}, 120}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(Granules, AreThatManyElements) { EXPECT_EQ(GetParam().granule.of("w", GetParam().shape), GetParam().elements); }

TEST(Granule, ThatAShapeDoesNotHaveIsRefusedByName) {
  const auto refusal = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal([] { Granule::elements(0); }), testing::HasSubstr("got 0"));
  EXPECT_THAT(refusal([] { Granule::rows(-1); }), testing::HasSubstr("got -1"));
  EXPECT_EQ(refusal([] { (void)Granule::tiles(4).of("b", {16}); }),
            "parameter 'b': a granule of tiles needs two extents or more, got 1");
  EXPECT_EQ(refusal([] {
              (void)Granule::heads(5).of("w", {16, 3});
            }),
            "parameter 'w': the heads of its granule must divide its first extent of 16, got 5");
}

struct ModelCase {
  const char* name;
  Granule granule;
};
void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }
class GranulesOfAModel : public testing::TestWithParam<ModelCase> {};

INSTANTIATE_TEST_SUITE_P(, GranulesOfAModel,
                         testing::Values(ModelCase{"single_elements", Granule::elements(1)},
                                         ModelCase{"stretches", Granule::elements(256)},
                                         ModelCase{"rows", Granule::rows()}, ModelCase{"rows_16", Granule::rows(16)},
                                         ModelCase{"tiles_8", Granule::tiles(8)}, ModelCase{"heads", Granule::heads(6)},
                                         ModelCase{"whole", Granule::whole()}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(GranulesOfAModel, AreWholeOnEveryRankOfEveryMesh) {
  const std::vector<BlockSpec> blocks = {
      {.name = "layer",
       .parameters = {{.name = "qkv", .shape = {48, 24}, .granule = GetParam().granule},
                      {.name = "bias", .shape = {48}},
                      {.name = "up", .shape = {96, 24}, .split = {.extent = 0}, .granule = GetParam().granule},
                      {.name = "down", .shape = {24, 96}, .granule = GetParam().granule}}}};
  for (const MeshShape shape : {MeshShape{}, MeshShape{.shard = 2}, MeshShape{.shard = 3}, MeshShape{.shard = 4},
                                MeshShape{.shard = 8}, MeshShape{.shard = 3, .model = 2}}) {
    std::map<std::string, int64_t> owned;
    for (int64_t rank = 0; rank < shape.ranks(); ++rank) {
      tests::RecordingMesh mesh(shape, rank);
      const ShardedModel model(mesh, blocks);
      const FlatGroup& group = *model.groups().front();
      for (const OwnedRange& range : group.owned()) {
        const Parameter& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
        owned[parameter.name()] += range.count;
        if (parameter.name() == "bias") continue;
        const int64_t granule = GetParam().granule.of("", parameter.shape());
        EXPECT_EQ(parameter.granule(), granule);
        EXPECT_EQ(range.first % granule, 0) << parameter.name() << ": cut at its start on " << shape.text();
        if (range.first + range.count < parameter.numel()) {
          EXPECT_EQ((range.first + range.count) % granule, 0) << parameter.name() << ": cut on " << shape.text();
        }
      }
    }
    EXPECT_EQ(owned["qkv"], 48 * 24 * shape.model) << shape.text();
    EXPECT_EQ(owned["up"], 96 * 24) << shape.text();
  }
}

}  // namespace
}  // namespace ghostshard::fsdp
