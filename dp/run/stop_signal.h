// SIGTERM and Ctrl-C: the first one asks the run to stop after the step under way, a later one ends it at once.
//
// The signals are blocked in every thread and taken by one that waits for them, so that no system call of torch or Gloo
// is interrupted. A further signal within two seconds of the first counts as the same one: schedulers send it to a
// launcher and to its children, and the launcher passes it on. Afterwards the thread has its mask of before, and the
// signals do what the program's own handlers say.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

namespace ghostshard::dp {

class StopSignal {
 public:
  // Construct it before any other thread is started, and let it end on the same thread. say(text) is called from the
  // waiting thread. says_request: announce that the run will stop; one rank should do so, not all.
  StopSignal(std::function<void(const std::string&)> say, bool says_request);
  // Takes a request's copies that are still on their way to this process with it.
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
  sigset_t before_{};  // the constructing thread's mask
  std::thread thread_;
};

}  // namespace ghostshard::dp
