// Time of one step by phase, where the step runs.
//
// On a device a step is queued long before it is done. The end of a phase is then an event in the queue, which nobody
// waits for, and the host waits once, at the end of the step.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <vector>

namespace ghostshard::gpt2 {

constexpr int kPhases = 5;
constexpr const char* kPhaseNames[kPhases] = {"forward", "backward", "clipped sum", "noise+reduce", "optimizer"};

class Stopwatch {
 public:
  // Starts. The device has nothing to do at that time: whoever measured before has waited.
  explicit Stopwatch(at::Device device);
  // The phase ends here; a phase may end more than once, and its times are added up.
  void lap(int phase);
  // The step ends here. Waits for the device.
  void stop();

  // After stop(). The wall time of the step, all that the device had to do included; and the processor time: on a
  // machine that others use too, the steadier of the two.
  double total() const { return total_; }
  double processor() const { return processor_; }
  std::array<double, kPhases> seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Mark {
    c10::Event event;
    int phase;
  };
  void mark(int phase);

  at::Device device_;
  Clock::time_point began_, last_;
  double processor_began_;
  std::vector<Mark> marks_;
  std::array<double, kPhases> seconds_{};
  double total_ = 0, processor_ = 0;
};

}  // namespace ghostshard::gpt2
