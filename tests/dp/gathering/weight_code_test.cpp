// The codes that programs use, on a sharded model: the same values on every mesh, and half of bfloat16's bytes.
#include "dp/gathering/weight_code.h"

#include <gtest/gtest.h>

#include "fsdp/sharded_model.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {
namespace {

using kernels::WeightCode;

// A layer of GPT-2's proportions, an embedding of rows that stretches do not divide, and vectors.
std::vector<fsdp::BlockSpec> blocks() {
  return {
      {"embedding", {{"table", {501, 100}}}, fsdp::Residency::kKeep},
      {"layer",
       {{"in", {192, 576}}, {"in_bias", {576}}, {"out", {192, 192}}, {"norm", {192}}, {"frozen", {192, 96}, false}}}};
}

void fill(fsdp::ShardedModel& model) {
  const at::Generator generator = at::detail::createCPUGenerator(4);
  for (const auto& parameter : model.parameters()) {
    model.set_parameter(*parameter, at::randn(parameter->shape(), generator).mul(0.02));
  }
}

int64_t gathered_bytes(fsdp::Mesh& mesh, at::ScalarType type, const std::shared_ptr<const fsdp::GatherCode>& code) {
  fsdp::ShardedModel model(mesh, blocks(), type, code);
  fill(model);
  const int64_t before = mesh.gather().bytes_sent();
  for (int64_t block = 0; block < model.block_count(); ++block) const fsdp::Lease lease(model, block);
  return mesh.gather().bytes_sent() - before;
}

struct Coded {
  WeightCode code;
  int64_t ranks;
};
void PrintTo(const Coded& c, std::ostream* out) { *out << c.ranks << " ranks"; }
class WeightCodes : public testing::TestWithParam<Coded> {};
INSTANTIATE_TEST_SUITE_P(, WeightCodes,
                         testing::Values(Coded{WeightCode::kInt8, 1}, Coded{WeightCode::kInt8, 2},
                                         Coded{WeightCode::kInt8, 3}, Coded{WeightCode::kInt8, 8},
                                         Coded{WeightCode::kFloat8, 1}, Coded{WeightCode::kFloat8, 3}),
                         [](const auto& test) {
                           return std::string(test.param.code == WeightCode::kInt8 ? "int8_on_" : "float8_on_") +
                                  std::to_string(test.param.ranks);
                         });

TEST_P(WeightCodes, ShowTheValuesOfTheWholeParametersCodes) {
  const auto [kind, ranks] = GetParam();
  run_ranks(ranks, [kind = kind](fsdp::Mesh& mesh) {
    fsdp::ShardedModel model(mesh, blocks(), at::kFloat, dp::weight_code(kind));
    fill(model);
    for (const auto& parameter : model.parameters()) {
      const at::Tensor master = model.whole_parameter(*parameter).flatten();
      const fsdp::Lease lease(model, parameter->block());
      if (parameter->shape().size() < 2) {
        EXPECT_TRUE(at::equal(parameter->value(), master));
        continue;
      }
      const at::Tensor codes = at::empty({master.numel()}, at::kByte), values = at::empty({master.numel()});
      const at::Tensor scales = at::empty({kernels::weight_stretches(master.numel())});
      kernels::encode_weights(master, kind, codes, scales);
      kernels::decode_weights(codes, scales, kind, values);
      EXPECT_TRUE(at::equal(parameter->value().flatten(), values)) << parameter->name();
      EXPECT_FALSE(at::equal(values, master));
    }
  });
}

// One byte and 4/256 for the scale, beside two: 0.508. Vectors travel in bfloat16 here, and shards end with stretches.
TEST_P(WeightCodes, TakeAtMost52PerCentOfBfloat16sBytes) {
  const auto [kind, ranks] = GetParam();
  run_ranks(ranks, [kind = kind](fsdp::Mesh& mesh) {
    const int64_t narrow = gathered_bytes(mesh, at::kBFloat16, nullptr);
    const int64_t coded = gathered_bytes(mesh, at::kBFloat16, dp::weight_code(kind));
    EXPECT_EQ(narrow > 0, mesh.world_size() > 1);
    EXPECT_LE(static_cast<double>(coded), 0.52 * static_cast<double>(narrow));
    EXPECT_GE(static_cast<double>(coded), 0.5 * static_cast<double>(narrow)) << "a byte each has to travel";
  });
}

TEST(WeightCode, NamesItselfAndRefusesNoElements) {
  EXPECT_EQ(dp::weight_code(WeightCode::kInt8)->name(), "int8 by 256");
  EXPECT_EQ(dp::weight_code(WeightCode::kFloat8)->name(), "float8 by 256");
  EXPECT_THROW(dp::weight_code(WeightCode::kInt8, 0), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
