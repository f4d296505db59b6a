#include "bench/step_compare/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <ctime>

namespace ghostshard::gpt2 {
namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr int kBeginning = -1;

}  // namespace

Stopwatch::Stopwatch(at::Device device)
    : device_(device), began_(Clock::now()), last_(began_), processor_began_(processor_seconds()) {
  if (!device_.is_cpu()) mark(kBeginning);
}

void Stopwatch::mark(int phase) {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  marks_.push_back({std::move(event), phase});
}

void Stopwatch::lap(int phase) {
  if (!device_.is_cpu()) return mark(phase);
  const auto now = Clock::now();
  seconds_[static_cast<size_t>(phase)] += seconds_between(last_, now);
  last_ = now;
}

void Stopwatch::stop() {
  if (!marks_.empty()) marks_.back().event.synchronize();
  total_ = seconds_between(began_, Clock::now());
  processor_ = processor_seconds() - processor_began_;
  for (size_t i = 1; i < marks_.size(); ++i) {
    constexpr double kSecondsPerMillisecond = 1e-3;
    seconds_[static_cast<size_t>(marks_[i].phase)] +=
        kSecondsPerMillisecond * marks_[i - 1].event.elapsedTime(marks_[i].event);
  }
}

}  // namespace ghostshard::gpt2
