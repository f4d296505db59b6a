// Random runs through all engines: width of each bracket, CPU time, peak memory. A line of JSON for each run, which
// table.py reads: it counts contradictions and writes the table of docs/accountant.md.
//
//   accountant_fuzz --seed 1 --runs 400 [--families corners,schedules] [--engines contour,prv,rdp,prv-quick]
//
// prv-quick is prv with Effort::kQuick: a bracket as certain on a small grid, wider, for runs by the ten thousand.
//
// A run is known by its family, the seed and its number. Others on the machine change neither its numbers nor, by much,
// its CPU time.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "accountant/accountant.h"

namespace {

using nlohmann::json;
namespace acc = ghostshard::accountant;

struct Phase {
  double q, sigma;
  int64_t steps;
};
struct Run {
  std::vector<Phase> phases;
  double delta;
};

class Draw {
 public:
  Draw(uint64_t seed, size_t family, uint64_t number)
      : random_(seeded({seed, static_cast<uint64_t>(family), number})) {}
  double uniform(double low, double high) {  // not std::uniform_real_distribution: the same everywhere
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  double log_uniform(double low, double high) { return std::exp(uniform(std::log(low), std::log(high))); }
  int64_t count(double low, double high) { return static_cast<int64_t>(std::floor(log_uniform(low, high + 1))); }
  bool heads(double probability) { return uniform(0, 1) < probability; }

 private:
  static std::mt19937_64 seeded(std::initializer_list<uint64_t> from) {
    std::seed_seq sequence(from);
    return std::mt19937_64(sequence);
  }

  std::mt19937_64 random_;
};

Phase usual_phase(Draw& draw) { return {draw.log_uniform(1e-5, 1), draw.log_uniform(0.3, 30), draw.count(30, 1e6)}; }

Run one_phase(Draw& draw) { return {{usual_phase(draw)}, draw.log_uniform(1e-12, 1e-3)}; }

Run several_phases(Draw& draw) {
  Run run{{}, draw.log_uniform(1e-12, 1e-3)};
  for (int64_t n = draw.count(2, 8); n > 0; --n) run.phases.push_back(usual_phase(draw));
  return run;
}

// A sigma of its own in every few steps, falling or rising as schedules do.
Run schedule(Draw& draw) {
  Run run{{}, draw.log_uniform(1e-12, 1e-3)};
  const int64_t n = draw.count(20, 3000);
  const double q = draw.log_uniform(1e-4, 0.5);
  const double first = draw.log_uniform(0.6, 10);
  const double ratio = draw.log_uniform(0.3, 3);
  const int64_t steps = draw.count(1, 100);
  for (int64_t i = 0; i < n; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(n);
    run.phases.push_back({q, first * std::pow(ratio, share), steps});
  }
  return run;
}

// A rate and a sigma of its own in every few steps, at random around a schedule.
Run rates(Draw& draw) {
  Run run = schedule(draw);
  const double spread = draw.log_uniform(0.01, 1);
  const double of_sigma = draw.log_uniform(0.001, 0.3);
  for (Phase& phase : run.phases) {
    phase.q = std::min(1.0, phase.q * std::exp(spread * draw.uniform(-1, 1)));
    phase.sigma *= std::exp(of_sigma * draw.uniform(-1, 1));
  }
  return run;
}

// Where the moments hardly fall along a line.
Run few_steps(Draw& draw) {
  Run run{{}, draw.log_uniform(1e-12, 0.1)};
  for (int64_t n = draw.count(1, 3); n > 0; --n)
    run.phases.push_back({draw.log_uniform(1e-7, 1), draw.log_uniform(0.2, 10), draw.count(1, 100)});
  return run;
}

Run corner(Draw& draw) {
  Run run{{}, draw.log_uniform(1e-40, 0.5)};
  for (int64_t n = draw.count(1, 3); n > 0; --n) {
    double q = draw.log_uniform(1e-9, 1);
    if (draw.heads(0.2)) q = 1 - draw.log_uniform(1e-9, 0.5);
    if (draw.heads(0.05)) q = 1;
    run.phases.push_back({q, draw.log_uniform(0.01, 1000), draw.count(1, 1e7)});
  }
  return run;
}

struct Family {
  const char* name;
  Run (*draw)(Draw&);
};
constexpr Family kFamilies[] = {{"one phase", one_phase}, {"several phases", several_phases},
                                {"schedules", schedule},  {"few steps", few_steps},
                                {"corners", corner},      {"rates", rates}};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The peak since the last call of forget_peak, in MiB. 0 where the system does not say.
void forget_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}
double peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : "inf";
}

json measure(const std::string& name, const Run& run) {
  constexpr std::string_view kQuick = "-quick";
  const bool quick = name.ends_with(kQuick);
  const std::string engine = name.substr(0, name.size() - (quick ? kQuick.size() : 0));
  forget_peak();
  const auto began = std::chrono::steady_clock::now();
  const double cpu_began = cpu_seconds();
  json found;
  try {
    const auto accountant = acc::make_accountant(engine, acc::Adjacency::kZeroOut);
    for (const Phase& phase : run.phases)
      accountant->compose(acc::PoissonGaussianEvent{acc::SamplingRate(phase.q), acc::NoiseMultiplier(phase.sigma)},
                          phase.steps);
    const acc::EpsilonBound bound =
        accountant->epsilon(acc::Delta(run.delta), quick ? acc::Effort::kQuick : acc::Effort::kTight);
    found = {{"lower", number(bound.lower)}, {"upper", number(bound.upper)}, {"detail", bound.detail}};
  } catch (const std::exception& error) {
    found = {{"error", error.what()}};
  }
  found["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  found["cpu_seconds"] = cpu_seconds() - cpu_began;
  found["mib"] = peak_memory();
  return found;
}

std::string described(const Run& run) {
  std::ostringstream text;
  text.precision(17);
  const size_t shown = std::min<size_t>(run.phases.size(), 8);
  for (size_t i = 0; i < shown; ++i)
    text << (i > 0 ? " " : "") << run.phases[i].q << ':' << run.phases[i].sigma << ':' << run.phases[i].steps;
  if (shown < run.phases.size()) text << " and " << run.phases.size() - shown << " more";
  return text.str();
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Random runs through all engines of the accountant, a line of JSON each.");
  uint64_t seed = 1;
  uint64_t runs = 100;
  uint64_t first = 0;
  std::vector<std::string> families;
  std::vector<std::string> engines = {"contour", "prv", "rdp"};
  app.add_option("--seed", seed);
  app.add_option("--runs", runs, "of each family");
  app.add_option("--first", first, "number of the first run");
  app.add_option("--families", families, "of these; default: all")->delimiter(',');
  app.add_option("--engines", engines)->delimiter(',');
  CLI11_PARSE(app, count, words);
  for (uint64_t i = first; i < first + runs; ++i)
    for (size_t family = 0; family < std::size(kFamilies); ++family) {
      const std::string name = kFamilies[family].name;
      if (!families.empty() && std::find(families.begin(), families.end(), name) == families.end()) continue;
      Draw draw(seed, family, i);
      const Run run = kFamilies[family].draw(draw);
      json line = {
          {"family", name},    {"seed", seed}, {"run", i}, {"phases", described(run)}, {"distinct", run.phases.size()},
          {"delta", run.delta}};
      for (const std::string& engine : engines) line[engine] = measure(engine, run);
      std::cout << line.dump() << '\n' << std::flush;
    }
  return 0;
}
