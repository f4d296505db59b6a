// Each case runs in a process of its own: others may have threads that do not block the signals.
#include "dp/run/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <optional>

namespace ghostshard::dp {
namespace {

constexpr auto kNothing = [](const std::string&) {};

bool blocked(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

void set_blocked(int how, int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(how, &set, nullptr);
}

[[noreturn]] void end(bool held) { std::_Exit(held ? 0 : 1); }

TEST(StopSignal, LeavesItsThreadsMaskAsItWas) {
  EXPECT_EXIT(
      {
        set_blocked(SIG_UNBLOCK, SIGTERM);
        set_blocked(SIG_BLOCK, SIGINT);
        bool both = false;
        {
          const StopSignal stop(kNothing, true);
          both = blocked(SIGTERM) && blocked(SIGINT);
        }
        end(both && !blocked(SIGTERM) && blocked(SIGINT));
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignal, LeavesTheSignalsToTheProgramAfterwards) {
  EXPECT_EXIT(
      {
        set_blocked(SIG_UNBLOCK, SIGTERM);
        { const StopSignal stop(kNothing, true); }
        ::kill(::getpid(), SIGTERM);
        end(false);
      },
      testing::KilledBySignal(SIGTERM), "");
}

// A scheduler's signal comes twice (from it, and from the launcher): the copy must not end a run that has stopped.
void stop_on_two_signals() {
  set_blocked(SIG_UNBLOCK, SIGTERM);
  std::promise<void> said;
  std::promise<void> copied;
  std::thread copy;
  {
    const auto say = [&](const std::string&) {
      said.set_value();
      copied.get_future().wait();
    };
    StopSignal stop(say, true);
    stop.begin_graceful();
    ::kill(::getpid(), SIGTERM);
    said.get_future().wait();
    ::kill(::getpid(), SIGTERM);  // stays pending: the waiting thread is busy with the first
    copy = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the destructor waits for the thread
      copied.set_value();
    });
  }
  copy.join();
  end(!blocked(SIGTERM));
}

TEST(StopSignal, TakesTheCopiesOfItsRequestWithIt) {
  EXPECT_EXIT(stop_on_two_signals(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ghostshard::dp
