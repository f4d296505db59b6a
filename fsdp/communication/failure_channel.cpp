#include "fsdp/communication/failure_channel.h"

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <vector>

namespace ghostshard::fsdp {
namespace {
constexpr auto kPollInterval = std::chrono::milliseconds(500);
constexpr auto kAnnouncementLimit = std::chrono::seconds(5);
constexpr const char* kKey = "failure";  // not a std::string: a thread left behind may read it while the process ends
}  // namespace

FailureChannel::~FailureChannel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stop_requested_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FailureChannel::announce(const std::string& message) noexcept {
  try {
    // A store whose server is there but silent (a stopped process) keeps a caller waiting for ever, whatever its
    // time-out. So a thread of its own asks, and is left behind if it gets no answer.
    const auto done = std::make_shared<std::promise<void>>();
    auto answered = done->get_future();
    std::thread([store = store_, done, text = "rank " + std::to_string(rank_) + ": " + message] {
      try {
        // Sets the key only if it is not there yet: the first message of the run wins.
        store->compareSet(kKey, std::string(), text);
      } catch (...) {  // NOLINT(bugprone-empty-catch)
        // The store is gone, and with it the rank or agent that served it; the others notice by their connections.
      }
      done->set_value();
    }).detach();
    answered.wait_for(kAnnouncementLimit);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // No thread could be started: the others notice by their connections.
  }
}

void FailureChannel::watch(std::function<void(const std::string&)> on_failure) {
  if (thread_.joinable()) throw std::logic_error("watch_failures must be called once, was called again");
  thread_ = std::thread([this, on_failure = std::move(on_failure)] { poll(on_failure); });
}

void FailureChannel::poll(const std::function<void(const std::string&)>& on_failure) {
  const std::string own_prefix = "rank " + std::to_string(rank_) + ": ";
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    lock.unlock();
    std::string message;
    try {
      if (store_->check({kKey})) message = store_->get_to_str(kKey);
    } catch (...) {
      return;  // at the end of a run the store may go first; a store lost midway shows in the collectives
    }
    if (!message.empty()) {
      if (message.rfind(own_prefix, 0) != 0) on_failure(message);
      return;
    }
    lock.lock();
    stop_requested_.wait_for(lock, kPollInterval, [this] { return stop_; });
  }
}

}  // namespace ghostshard::fsdp
