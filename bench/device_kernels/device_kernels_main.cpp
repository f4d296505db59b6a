// The kernels on a device beside cuBLAS' and PyTorch's ways, at the shapes of GPT-2: microseconds, TFLOP/s, GB/s, the
// ratio of times, and for operations that memory bounds the share of a copy's rate. It takes Google Benchmark's own
// options too.
//
//   device_kernels --device cuda --benchmark_out=kernels.json
//   device_kernels --device cpu --models 124M --lengths 100 --benchmark_filter=gram_norm/qkv
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "bench/device_kernels/cases.h"
#include "fsdp/device_name.h"

namespace {

using namespace ghostshard::bench;

const std::map<std::string, Model> kModels = {{"124M", {"124M", 768, 50257}},
                                              {"355M", {"355M", 1024, 50257}},
                                              {"774M", {"774M", 1280, 50257}},
                                              {"tiny", {"tiny", 32, 97}}};  // to see that the program works
const std::map<std::string, at::ScalarType> kDtypes = {
    {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};

struct Options {
  std::string device, commit;
  std::vector<std::string> models{"124M", "355M", "774M"}, dtypes;
  std::vector<int64_t> lengths{100, 1024};
  int64_t rows = 8192;
  int64_t repeats = 10;
  double most_gib = 4;
  double copy_mib = 1024;
};

// Throws CLI::Error.
Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{"Kernels beside cuBLAS' and PyTorch's ways of computing the same."};
  app.add_option("--device", o.device, "cpu, cuda or cuda:N (default: cuda where there is one)");
  app.add_option("--models", o.models)->check(CLI::IsMember(kModels))->capture_default_str();
  app.add_option("--lengths", o.lengths, "Rows of a unit")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--dtypes", o.dtypes, "Of rows (default: all; on the CPU, whose kernels take no other, float32)")
      ->check(CLI::IsMember(kDtypes));
  app.add_option("--rows", o.rows, "About how many a microbatch has")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", o.repeats)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--most-gib", o.most_gib, "Of per-unit gradients: what would hold more is left out")
      ->capture_default_str();
  app.add_option("--copy-mib", o.copy_mib, "The buffer whose copy gives the rate that memory-bound kernels are held to")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--commit", o.commit, "Goes into the result");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::exit(app.exit(CLI::CallForHelp()));  // NOLINT(concurrency-mt-unsafe): no thread was started yet
  }
  return o;
}

std::vector<Entry> entries_of(const Options& options, at::Device device) {
  std::vector<std::string> dtypes = options.dtypes;
  if (dtypes.empty())
    dtypes = device.is_cpu() ? std::vector<std::string>{"float32"}
                             : std::vector<std::string>{"float32", "bfloat16", "float16"};
  std::vector<Entry> all;
  const auto add = [&](std::vector<Entry> entries) {
    std::move(entries.begin(), entries.end(), std::back_inserter(all));
  };
  for (const auto& name : options.models) {
    const Model& model = kModels.at(name);
    for (const int64_t length : options.lengths) {
      for (const auto& dtype : dtypes) {
        const Setting setting{.model = model,
                              .rows = {.units = std::max<int64_t>(1, options.rows / length), .length = length},
                              .dtype = kDtypes.at(dtype),
                              .device = device,
                              .most_bytes = static_cast<int64_t>(options.most_gib * (1 << 30))};
        add(linear_entries(setting));
        add(lookup_entries(setting));
        add(affine_entries(setting));
      }
    }
    add(noise_entries(model, device));
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  const Options options = parse(argc, argv);
  const at::Device device = chosen_device(options.device);
  const c10::DeviceGuard guard(device);
  const at::NoGradGuard no_autograd;
  DeviceClock clock(device);
  const double copy_rate = copy_bytes_per_second(clock, device, static_cast<int64_t>(options.copy_mib * (1 << 20)));
  const Measurement with{.clock = &clock, .copy_bytes_per_second = copy_rate};
  benchmark::AddCustomContext("device", ghostshard::fsdp::device_name(device));
  benchmark::AddCustomContext("commit", options.commit);
  benchmark::AddCustomContext("copy_gb_per_s", std::to_string(1e-9 * copy_rate));
  for (const Entry& entry : entries_of(options, device)) {
    const auto run = [make = entry.make, with](benchmark::State& state) { measure(state, make(), with); };
    benchmark::RegisterBenchmark(entry.name.c_str(), run)
        ->UseManualTime()
        ->Iterations(options.repeats)
        ->Unit(benchmark::kMicrosecond);
  }
  std::printf("%s, a copy moves %.1f GB/s\n", ghostshard::fsdp::device_name(device).c_str(), 1e-9 * copy_rate);
  LineReporter lines;
  benchmark::RunSpecifiedBenchmarks(&lines);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
