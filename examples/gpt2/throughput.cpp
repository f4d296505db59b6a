#include "examples/gpt2/throughput.h"

#include <stdexcept>

namespace ghostshard::gpt2 {
namespace {

struct ListedDevice {
  const char* name;  // the driver's name of the device begins with it
  double float32, half;
};

// From NVIDIA's data sheets; half of a rate that is given with sparsity. The longer of two names comes first.
constexpr ListedDevice kListed[] = {
    {"NVIDIA H200 NVL", 60, 835.5},  {"NVIDIA H200", 67, 989.5},      {"NVIDIA H100 NVL", 60, 835.5},
    {"NVIDIA H100 PCIe", 51, 756.5}, {"NVIDIA H100 80GB", 67, 989.5}, {"NVIDIA A100", 19.5, 312},
};

}  // namespace

int64_t multiplied_parameters(const Config& config) {
  const int64_t d = config.n_embd;
  return config.n_layer * (4 * d * d + 2 * d * config.n_inner) + config.vocab_size * d;
}

double model_flops_per_token(const Config& config, int64_t length) {
  return 6.0 * static_cast<double>(multiplied_parameters(config)) +
         12.0 * static_cast<double>(config.n_layer * config.n_embd) * static_cast<double>(length);
}

std::optional<double> listed_peak_tflops(const std::string& device_name, at::ScalarType compute_dtype) {
  for (const ListedDevice& listed : kListed) {
    if (device_name.starts_with(listed.name)) return compute_dtype == at::kFloat ? listed.float32 : listed.half;
  }
  return std::nullopt;
}

Throughput throughput(const Config& config, const MeasuredStep& step, std::optional<double> peak_tflops) {
  if (!(step.ranks >= 1 && step.seconds > 0 && peak_tflops.value_or(1) > 0)) {
    throw std::invalid_argument("throughput: ranks, seconds and the device's peak must be positive");
  }
  const double tokens_per_second = static_cast<double>(step.tokens) / step.seconds;
  const double tflops =
      1e-12 * tokens_per_second * model_flops_per_token(config, step.length) / static_cast<double>(step.ranks);
  return {.tokens_per_second = tokens_per_second,
          .model_tflops = tflops,
          .mfu = peak_tflops ? std::optional(tflops / *peak_tflops) : std::nullopt};
}

}  // namespace ghostshard::gpt2
