// The time of one step by phase, on the device that the step runs on.
//
// On a device a step is queued long before it is done. The end of a phase is then an event in the queue, without a
// wait; the host waits once, at the end of the step.
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
  // Starts. The device is idle then: the measurement before has waited for it.
  explicit Stopwatch(at::Device device);
  // Ends a phase; a phase may end more than once, and its times are added up.
  void lap(int phase);
  // Ends the step. Waits for the device.
  void stop();

  // After stop(). The wall time of the step, the device's work included; and the processor time, which is the steadier
  // of the two on a machine that others use too.
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
