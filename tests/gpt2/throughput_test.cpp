// Throughput from seconds, against counts made another way.
#include "examples/gpt2/throughput.h"

#include <gtest/gtest.h>

#include "examples/gpt2/model.h"

namespace ghostshard::gpt2 {
namespace {

Config sized(int64_t layers, int64_t width, bool tied) {
  Config config;
  config.n_layer = layers;
  config.n_embd = width;
  config.n_inner = 4 * width;
  config.tie_word_embeddings = tied;
  return config;
}

// From the model's own list of parameters: matrices, but for tables that are only looked up.
int64_t counted(const Config& config) {
  int64_t elements = 0;
  for (const auto& block : block_specs(config, {}, {})) {
    for (const auto& parameter : block.parameters) {
      const bool looked_up = parameter.name == "transformer.wpe.weight" ||
                             (parameter.name == "transformer.wte.weight" && !config.tie_word_embeddings);
      if (parameter.shape.size() == 2 && !looked_up) elements += parameter.shape[0] * parameter.shape[1];
    }
  }
  return elements;
}

TEST(Throughput, multiplied_parameters_are_the_models_matrices) {
  EXPECT_EQ(multiplied_parameters(sized(12, 768, true)), counted(sized(12, 768, true)));
  EXPECT_EQ(multiplied_parameters(sized(12, 768, false)), counted(sized(12, 768, false)));
  EXPECT_EQ(multiplied_parameters(sized(36, 1280, true)), counted(sized(36, 1280, true)));
}

// Forward: 2 operations for each weight and row; in attention T queries meet T keys and T values, of d numbers each.
TEST(Throughput, a_tokens_operations_are_three_forwards) {
  const Config config = sized(2, 16, true);
  const double length = 7;
  const double attention_of_a_text = 2 * (2 * length * length * 16) * 2;  // two products, two layers
  const double forward = 2 * static_cast<double>(counted(config)) + attention_of_a_text / length;
  EXPECT_DOUBLE_EQ(model_flops_per_token(config, 7), 3 * forward);
}

TEST(Throughput, tokens_and_share_of_the_peak) {
  const Config config = sized(2, 16, true);
  const MeasuredStep step{.tokens = 4000, .length = 100, .ranks = 2, .seconds = 0.5};
  const Throughput reached = throughput(config, step, 0.25);
  EXPECT_DOUBLE_EQ(reached.tokens_per_second, 8000);
  EXPECT_DOUBLE_EQ(reached.model_tflops * 1e12, 4000 * model_flops_per_token(config, 100));
  EXPECT_DOUBLE_EQ(reached.mfu.value(), reached.model_tflops / 0.25);
  EXPECT_FALSE(throughput(config, step, std::nullopt).mfu.has_value());
  EXPECT_THROW(throughput(config, {.tokens = 1, .length = 1, .ranks = 1, .seconds = 0}, 1), std::invalid_argument);
  EXPECT_THROW(throughput(config, step, -1), std::invalid_argument);
}

struct Named {
  const char* name;
  at::ScalarType dtype;
  std::optional<double> tflops;
};

TEST(Throughput, peaks_go_by_the_drivers_name) {
  for (const Named& device :
       {Named{"NVIDIA H100 80GB HBM3", at::kBFloat16, 989.5}, Named{"NVIDIA H100 80GB HBM3", at::kFloat, 67.0},
        Named{"NVIDIA H100 PCIe", at::kBFloat16, 756.5}, Named{"NVIDIA H200 NVL", at::kFloat, 60.0},
        Named{"NVIDIA H200", at::kFloat, 67.0}, Named{"AMD EPYC", at::kFloat, std::nullopt},
        Named{"", at::kFloat, std::nullopt}}) {
    EXPECT_EQ(listed_peak_tflops(device.name, device.dtype), device.tflops) << device.name;
  }
}

}  // namespace
}  // namespace ghostshard::gpt2
