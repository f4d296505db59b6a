#include "dp/run/stop_signal.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>

namespace ghostshard::dp {
namespace {

constexpr auto kSameRequest = std::chrono::seconds(2);

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

StopSignal::StopSignal(std::function<void(const std::string&)> say, bool says_request)
    : say_(std::move(say)), says_request_(says_request) {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  thread_ = std::thread([this] { wait(); });
}

StopSignal::~StopSignal() {
  done_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);  // to the waiting thread alone
  thread_.join();
  // A copy of the request that is pending would end the program now, after the run that it asked for has stopped.
  const sigset_t set = stop_signals();
  const timespec at_once{};
  while (requested_ && sigtimedwait(&set, nullptr, &at_once) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignal::wait() {
  const sigset_t set = stop_signals();
  std::chrono::steady_clock::time_point first;
  for (;;) {
    const int signal = sigwaitinfo(&set, nullptr);
    if (done_) return;
    if (signal < 0) continue;
    const std::string name = signal == SIGINT ? "Ctrl-C" : "SIGTERM";
    const auto now = std::chrono::steady_clock::now();
    if (!graceful_ || (requested_ && now - first >= kSameRequest)) {
      say_("ended at once by " + name);
      std::_Exit(128 + signal);
    }
    if (requested_) continue;
    first = now;
    requested_ = true;
    if (says_request_)
      say_(name + ": stopping after the step under way, with a checkpoint; again (after 2 s): end at once");
  }
}

}  // namespace ghostshard::dp
