#include "bench/device_kernels/comparison.h"

#include <algorithm>
#include <cstdio>

namespace ghostshard::bench {
namespace {

constexpr int kWarmUps = 2;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Relative to the largest value. NaN, or an extent that differs, is never within a tolerance.
bool within(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  const at::Tensor x = found.cpu().to(at::kDouble), y = expected.cpu().to(at::kDouble);
  if (x.sizes() != y.sizes()) return false;
  if (x.numel() == 0) return true;
  return (x - y).abs().max().item<double>() <= tolerance * y.abs().max().item<double>();
}

// Calls each side once. Returns an error if a result differs from ours, else an empty text.
std::string first_calls(const Comparison& comparison) {
  comparison.ours.call();
  for (const Side& peer : comparison.peers) {
    peer.call();
    if (!peer.result) continue;
    if (!within(comparison.ours.result(), peer.result(), comparison.tolerance)) {
      return "the result is not that of " + peer.name;
    }
  }
  return "";
}

}  // namespace

void measure(benchmark::State& state, const Comparison& comparison, const Measurement& with) {
  const std::string difference = first_calls(comparison);
  if (!difference.empty()) return state.SkipWithError(difference.c_str());
  for (int i = 1; i < kWarmUps; ++i) {
    comparison.ours.call();
    for (const Side& peer : comparison.peers) peer.call();
  }
  std::vector<double> ours;
  std::vector<std::vector<double>> peers(comparison.peers.size()), ratios(comparison.peers.size());
  for (auto _ : state) {
    // In turn, so that a device that slows down slows down for all sides.
    ours.push_back(with.clock->seconds(comparison.ours.call));
    state.SetIterationTime(ours.back());
    for (size_t p = 0; p < peers.size(); ++p) {
      peers[p].push_back(with.clock->seconds(comparison.peers[p].call));
      ratios[p].push_back(ours.back() / peers[p].back());
    }
  }
  const double seconds = median(ours);
  state.counters["us"] = 1e6 * seconds;
  state.counters["flops"] = comparison.flops;
  state.counters["bytes"] = comparison.bytes;
  state.counters["gb_per_s"] = 1e-9 * comparison.bytes / seconds;
  if (comparison.flops > 0) state.counters["tflops"] = 1e-12 * comparison.flops / seconds;
  if (comparison.memory_bound) state.counters["of_copy"] = comparison.bytes / seconds / with.copy_bytes_per_second;
  for (size_t p = 0; p < peers.size(); ++p) {
    state.counters[comparison.peers[p].name + "_us"] = 1e6 * median(peers[p]);
    state.counters["ours_over_" + comparison.peers[p].name] = median(ratios[p]);
  }
}

bool LineReporter::ReportContext(const Context& /*context*/) {
  std::printf("%-64s %12s %9s %9s  %s\n", "operation", "us", "TFLOP/s", "GB/s", "time over each peer's");
  return true;
}

void LineReporter::ReportRuns(const std::vector<Run>& runs) {
  const std::string ratio = "ours_over_";
  for (const Run& run : runs) {
    const std::string name = run.run_name.function_name;
    if (run.error_occurred) {
      std::printf("%-64s error: %s\n", name.c_str(), run.error_message.c_str());
      continue;
    }
    const auto number = [&](const char* key) {
      const auto found = run.counters.find(key);
      return found == run.counters.end() ? 0.0 : found->second.value;
    };
    std::printf("%-64s %12.1f %9.3f %9.1f ", name.c_str(), number("us"), number("tflops"), number("gb_per_s"));
    for (const auto& [key, counter] : run.counters) {
      if (key.starts_with(ratio)) std::printf(" %s %.3f", key.substr(ratio.size()).c_str(), counter.value);
    }
    if (number("of_copy") > 0) std::printf("  %.0f %% of a copy's rate", 100 * number("of_copy"));
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace ghostshard::bench
