// Time and error of each engine on the oracle's rows. Read by accountant_peers.py, which puts other accountants beside
// it.
#include <benchmark/benchmark.h>

#include <string>

#include "accountant/calibration.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

void epsilon(benchmark::State& state, const std::string& engine, const OracleTruth& row, Effort effort) {
  EpsilonBound bound;
  for (auto _ : state) {
    // Charged anew each time: no query reuses another one's work.
    bound = charged(engine, row)->epsilon(Delta(row.delta), effort);
    benchmark::DoNotOptimize(bound);
  }
  state.counters["lower"] = bound.lower;
  state.counters["estimate"] = bound.estimate;
  state.counters["upper"] = bound.upper;
  state.counters["truth"] = row.epsilon;
  state.counters["delta"] = row.delta;
  std::string phases;
  for (const OraclePhase& phase : row.phases) {
    char text[96];
    std::snprintf(text, sizeof text, "%s%.17g:%.17g:%lld", phases.empty() ? "" : ",", phase.q, phase.sigma,
                  static_cast<long long>(phase.steps));
    phases += text;
  }
  state.SetLabel(phases);
}

void noise(benchmark::State& state) {
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(3), Delta(1e-5)};
  double sigma = 0;
  for (auto _ : state) sigma = calibrate_noise(budget, SamplingRate(0.01), 10000).value();
  state.counters["sigma"] = sigma;
}

const bool registered = [] {
  for (const OracleTruth& row : oracle_truths()) {
    const std::string name = row.name;
    benchmark::RegisterBenchmark(("contour_quick/" + name).c_str(), epsilon, "contour", row, Effort::kQuick)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("contour/" + name).c_str(), epsilon, "contour", row, Effort::kTight)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("prv/" + name).c_str(), epsilon, "prv", row, Effort::kTight)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("rdp/" + name).c_str(), epsilon, "rdp", row, Effort::kTight)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("noise_for_epsilon_3", noise)->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace ghostshard::accountant
