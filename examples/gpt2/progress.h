// A bar on a terminal, plain lines otherwise; written by rank 0 to standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace ghostshard::gpt2 {

// May be shown at any time: it depends on the private data through released gradients alone.
struct StepFacts {
  int64_t step = 0;  // steps done
  std::optional<double> epsilon;
  std::optional<double> public_loss;
};

class Progress {
 public:
  // first: steps done before; their time is not counted.
  Progress(int64_t steps, bool enabled, int64_t first = 0);
  void show(const StepFacts& facts);
  // Ends the bar's line.
  void finish();
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  int64_t steps_;
  int64_t first_;
  bool enabled_;
  bool terminal_;
  bool line_open_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = Clock::time_point::min();
  std::optional<double> public_loss_;
};

// "3:07", "1:02:09".
std::string clock_text(double seconds);

}  // namespace ghostshard::gpt2
