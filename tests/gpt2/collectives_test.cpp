// Which collectives a step is made of: the same on every rank, and as many bytes as the formulas say. Up to 1,024 ranks
// of a recording mesh, one after the other; and the records are those of real ranks.
#include <gtest/gtest.h>

#include <mutex>

#include "dp/gathering/weight_code.h"
#include "dp/run/nonprivate.h"
#include "tests/gpt2/small_world.h"
#include "tests/support/ranks.h"
#include "tests/support/recording_mesh.h"

namespace ghostshard::tests {
namespace {

using fsdp::MeshShape;

constexpr int64_t kMicrobatch = 2;

gpt2::Config config_of(int64_t layers) {
  gpt2::Config config = small_config(true, /*heads=*/4);
  config.n_layer = layers;
  return config;
}

// One rank's side of a step: a model, its data, and a step in either mode.
class Runner {
 public:
  Runner(fsdp::Mesh& mesh, const gpt2::Config& config, const std::filesystem::path& texts)
      : mesh_(mesh),
        model_(mesh, config, {}),
        data_(texts, config.vocab_size, config.n_positions),
        plan_(dp::DpPlan::make({.units = data_.units(),
                                .expected_batch = data_.units(),  // q = 1: the batch does not depend on the key
                                .steps = 10,
                                .noise_multiplier = accountant::NoiseMultiplier(1.0)})) {}

  gpt2::Gpt2& model() { return model_; }
  dp::Microbatches batches() const {
    return plan_.sampler(key_, mesh_.data_rank(), mesh_.data_size()).draw_local({0}, kMicrobatch, data_.row_counts());
  }
  int64_t rows_of(const std::vector<int64_t>& units) const { return data_.batch(units).segments->rows(); }

  void private_step() {
    auto clipper = plan_.clipper(model_.parameters());
    auto mechanism = plan_.mechanism(model_.parameters(), key_, nullptr);
    dp::PrivateOptimizer optimizer(fsdp::make_sgd(model_.parameters(), {}));
    auto sum = clipped_batch(model_, clipper, data_, batches(), mechanism, {0});
    optimizer.step(mechanism.release(std::move(sum), {0}), 0.1);
  }

  void plain_step() {
    dp::PlainAccumulator accumulator(model_.parameters(), 1.0);
    const auto optimizer = fsdp::make_sgd(model_.parameters(), {});
    accumulator.begin();
    {
      const auto resident = model_.resident();
      for (const auto& units : batches()) {
        model_.summed_unit_losses(data_.batch(units), accumulator.recorder()).backward();
      }
    }
    optimizer->step(accumulator.reduce(), 0.1);
  }

 private:
  fsdp::Mesh& mesh_;
  gpt2::Gpt2 model_;
  gpt2::Dataset data_;
  dp::DpPlan plan_;
  dp::RunKey key_ = key_of(1);
};

// Bytes that a rank sends to sum n elements over `ranks` ranks: its part to each, and each part's sum to all.
int64_t all_reduce_bytes(int64_t n, int64_t ranks, int64_t element) {
  return 2 * (ranks - 1) * ((n + ranks - 1) / ranks) * element;
}

class Recorded : public ::testing::TestWithParam<const char*> {
 protected:
  Recorded() { write_texts(path_, awkward_texts(config_)); }
  const MeshShape shape_ = MeshShape::parse(GetParam());
  const gpt2::Config config_ = config_of(shape_.ranks() > 8 ? 2 : 3);
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "texts.safetensors";
};
INSTANTIATE_TEST_SUITE_P(Gpt2, Recorded,
                         ::testing::Values("1x2x1", "1x8x1", "2x4x1", "1x1x4", "1x4x2", "2x2x2", "1x64x1", "4x8x2",
                                           "1x1024x1", "16x32x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

// The part of the calls that must not differ between ranks. Sizes along the model axis follow the rows of a rank's own
// texts, and the root of a broadcast sends more.
std::vector<RecordedCall> comparable(std::vector<RecordedCall> calls, bool rows_too) {
  for (RecordedCall& call : calls) {
    call.bytes_sent = 0;
    if (!rows_too && call.communicator == "model") call.elements = 0;
  }
  return calls;
}

TEST_P(Recorded, EveryRankIssuesTheSameCollectivesInTheSameOrder) {
  std::vector<RecordedCall> of_rank_0, of_model_rank_0;
  for (int64_t rank = 0; rank < shape_.ranks(); ++rank) {
    RecordingMesh mesh(shape_, rank);
    Runner(mesh, config_, path_).private_step();
    const auto calls = comparable(mesh.calls(), false);
    if (rank == 0) of_rank_0 = calls;
    ASSERT_EQ(calls.size(), of_rank_0.size()) << "rank " << rank;
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_EQ(calls[i], of_rank_0[i]) << "rank " << rank << ", call " << i << ": " << calls[i].call << " on "
                                        << calls[i].communicator << ", rank 0 has " << of_rank_0[i].call << " on "
                                        << of_rank_0[i].communicator;
    }
    if (mesh.model_rank() == 0) of_model_rank_0 = comparable(mesh.calls(), true);
    ASSERT_EQ(comparable(mesh.calls(), true), of_model_rank_0) << "model peers see the same rows, rank " << rank;
  }
  EXPECT_GE(of_rank_0.size(), 9U) << "four groups gathered and reduced, and a word on the ledger";
}

TEST_P(Recorded, BytesOfAStepAreThoseOfTheFormulaAndOfAStepWithoutPrivacy) {
  const int64_t last = shape_.ranks() - 1;
  for (const int64_t rank : {int64_t{0}, last}) {
    RecordingMesh mesh(shape_, rank), plain_mesh(shape_, rank);
    Runner runner(mesh, config_, path_), plain(plain_mesh, config_, path_);
    runner.private_step();
    plain.plain_step();
    const int64_t blocks = config_.n_layer;
    const auto batches = runner.batches();
    const auto microbatches = static_cast<int64_t>(batches.size());
    int64_t whole = 0, once = 0, forward = 0, backward = 0, gradients = 0, replicas = 0;
    for (const auto& group : runner.model().parameters().groups()) {
      const int64_t size = group->plan().shard_size();
      whole += size;
      gradients += size;
      replicas += all_reduce_bytes(size, shape_.replicate, 4);
      const bool block = group->block() >= 1 && group->block() <= blocks;
      if (!block) once += size;  // embeddings and end are kept for the whole step
      // Two buffers: the last two blocks are still there when backward begins, and the first two when it ends, which
      // the next microbatch's forward then finds.
      if (block) forward += size;
      if (block && group->block() <= blocks - 2) backward += size;
    }
    int64_t first_two = 0;
    for (const auto& group : runner.model().parameters().groups()) {
      if (group->block() == 1 || group->block() == 2) first_two += group->plan().shard_size();
    }
    const int64_t found_again = (microbatches - 1) * first_two;
    const int64_t gathered = once + microbatches * (forward + backward) - found_again;
    EXPECT_EQ(mesh.bytes_sent("gather"), 4 * (shape_.shard - 1) * gathered);
    EXPECT_EQ(mesh.bytes_sent("reduce"), 4 * (shape_.shard - 1) * gradients);
    EXPECT_EQ(mesh.bytes_sent("replicate"), replicas);
    // 2P per microbatch for weights and P per logical batch for gradients, never more.
    EXPECT_LE(mesh.bytes_sent("gather") + mesh.bytes_sent("reduce"),
              4 * (shape_.shard - 1) * (2 * microbatches + 1) * whole);

    // Two sums of activations in a block's forward, two in its backward; privacy adds a double per text.
    int64_t activations = 0, norms = 0;
    for (const auto& units : batches) {
      activations += blocks * 4 * all_reduce_bytes(runner.rows_of(units) * config_.n_embd, shape_.model, 4);
      norms += all_reduce_bytes(static_cast<int64_t>(units.size()), shape_.model, 8);
    }
    // Model rank 0's sums of the parameters that its peers hold whole too.
    int64_t whole_sums = 0;
    for (const auto& group : runner.model().parameters().groups()) {
      if (!group->trainable() || mesh.model_rank() != 0) continue;
      for (const fsdp::OwnedRange& range : group->owned()) {
        const bool cut = group->parameters()[static_cast<size_t>(range.tensor)]->cut();
        if (!cut) whole_sums += 4 * range.count * (shape_.model - 1);
      }
    }
    EXPECT_EQ(mesh.bytes_sent("model"), activations + norms + whole_sums);
    EXPECT_EQ(plain_mesh.bytes_sent("model"), activations);
    // And one word that says whether the ledger could be written.
    EXPECT_EQ(mesh.bytes_sent("control"), rank == 0 ? 8 * last : 0);
    for (const char* axis : {"gather", "reduce", "replicate"}) {
      EXPECT_EQ(mesh.bytes_sent(axis), plain_mesh.bytes_sent(axis)) << axis;
    }
  }
}

class RecordedAndReal : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Gpt2, RecordedAndReal, ::testing::Values("1x3x1", "2x2x1", "1x2x2", "2x2x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

TEST_P(RecordedAndReal, SendTheSameBytes) {
  const MeshShape shape = MeshShape::parse(GetParam());
  const gpt2::Config config = config_of(3);
  const TemporaryFolder folder;
  const auto path = write_texts(folder.path() / "texts.safetensors", awkward_texts(config));
  run_mesh(shape, [&](fsdp::Mesh& mesh) {
    RecordingMesh record(shape, mesh.rank());
    Runner(record, config, path).private_step();
    const int64_t connecting = mesh.control().bytes_sent();  // the ranks compared their meshes
    Runner real(mesh, config, path);
    randomize(real.model(), 1);
    real.private_step();
    EXPECT_EQ(mesh.gather().bytes_sent(), record.bytes_sent("gather"));
    EXPECT_EQ(mesh.reduce().bytes_sent(), record.bytes_sent("reduce"));
    EXPECT_EQ(mesh.replicate().bytes_sent(), record.bytes_sent("replicate"));
    EXPECT_EQ(mesh.model().bytes_sent(), record.bytes_sent("model"));
    EXPECT_EQ(mesh.control().bytes_sent() - connecting, record.bytes_sent("control"));
  });
}

TEST(RecordingMesh, RefusesARankThatHasNoPlace) {
  EXPECT_THROW(RecordingMesh({.shard = 4}, 4), std::invalid_argument);
  EXPECT_THROW(RecordingMesh({.shard = 4}, -1), std::invalid_argument);
}

TEST(ModelAxis, MustDivideHeadsAndInnerColumnsAndTakesNoAdapters) {
  const auto message = [](int64_t ranks, const gpt2::Config& config,
                          const gpt2::ModelOptions& options = {}) -> std::string {
    RecordingMesh mesh({.model = ranks}, 0);
    try {
      gpt2::Gpt2(mesh, config, {}, options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  gpt2::Config config = small_config(true, 4);
  EXPECT_EQ(message(4, config), "accepted");
  EXPECT_EQ(message(3, config), "on a mesh with 3 model ranks n_head must be a multiple of 3, got 4");
  const std::string neither = "a mesh with model ranks takes neither adapters nor bfloat16, got 2 model ranks";
  EXPECT_EQ(message(2, config, {.lora = {.rank = 2, .alpha = 4.0, .targets = {"attn.c_attn"}}}), neither);
  EXPECT_EQ(message(2, config, {.compute_dtype = at::kBFloat16}), neither);
  EXPECT_EQ(message(2, config, {.gather_code = dp::weight_code(kernels::WeightCode::kInt8)}),
            "a mesh with model ranks takes no weights that travel in codes, got 2 model ranks");
  config.n_inner = 42;
  EXPECT_EQ(message(4, config), "on a mesh with 4 model ranks n_inner must be a multiple of 4, got 42");
}

}  // namespace
}  // namespace ghostshard::tests
