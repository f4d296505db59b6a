// SIGTERM and Ctrl-C: the first one asks the run to stop after the step under way, a later one ends it at once.
//
// The signals are blocked in every thread and taken by one that waits for them, so that no system call of torch or Gloo
// is interrupted. A further signal within two seconds of the first counts as the same one: schedulers send it to a
// launcher and to its children, and the launcher passes it on.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace ghostshard::dp {

class StopSignal {
 public:
  // Construct it before any other thread is started. say(text) is called from the waiting thread. says_request:
  // announce that the run will stop; one rank should do so, not all.
  StopSignal(std::function<void(const std::string&)> say, bool says_request);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Before this call a signal ends the process at once, with exit code 128 + its number: there is nothing to save yet.
  void begin_graceful() { graceful_ = true; }
  bool graceful() const { return graceful_; }
  bool requested() const { return requested_; }

 private:
  void wait();

  std::function<void(const std::string&)> say_;
  bool says_request_;
  std::atomic<bool> graceful_{false}, requested_{false}, done_{false};
  std::thread thread_;
};

}  // namespace ghostshard::dp
