// One operation of kernels/ beside PyTorch's ways of doing the same, on the same tensors.
#pragma once

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/device_kernels/device_clock.h"

namespace ghostshard::bench {

struct Side {
  std::string name;
  std::function<void()> call;
  // The result of the first call, to check that all sides compute the same thing; empty if results must differ (noise).
  std::function<at::Tensor()> result;
};

struct Comparison {
  // The least that the operation's own way needs, for all sides. The peers do more, so their rates are not given.
  double flops = 0;
  double bytes = 0;
  bool memory_bound = false;  // then its share of the copy's rate shows how good it is
  double tolerance = 0;       // between results, relative to the largest value
  Side ours;
  std::vector<Side> peers;
};

// Its tensors are made for its measurement and freed after it.
struct Entry {
  std::string name;
  std::function<Comparison()> make;
};

struct Measurement {
  DeviceClock* clock;
  double copy_bytes_per_second;
};

// For Google Benchmark, whose time is that of our side. Counters: us (median), tflops, gb_per_s, flops, bytes; of_copy
// if memory bounds the operation; for every peer <peer>_us and ours_over_<peer>, the median ratio of times: below 1
// ours is the faster. An error if a peer's result differs from ours.
void measure(benchmark::State& state, const Comparison& comparison, const Measurement& with);

// A line for each comparison: its name, microseconds, rates, and all ratios.
class LineReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
};

}  // namespace ghostshard::bench
