#include "fsdp/communication/collective_watch.h"

#include <algorithm>
#include <stdexcept>

#include "fsdp/communication/reason.h"

namespace ghostshard::fsdp {
namespace {
constexpr auto kMostBetweenLooks = std::chrono::milliseconds(200);
}  // namespace

CollectiveWatch::~CollectiveWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_requested_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CollectiveWatch::add(std::string what, std::function<bool()> done) {
  const std::lock_guard lock(mutex_);
  // This keeps the list short even if nobody watches. A failure is left to the watch.
  try {
    while (!open_.empty() && open_.front().done()) open_.pop_front();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
  open_.push_back({std::move(what), std::move(done), std::chrono::steady_clock::now() + timeout_});
}

int64_t CollectiveWatch::open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(open_.size());
}

void CollectiveWatch::start(std::function<void(const std::string&)> on_silence) {
  if (thread_.joinable()) throw std::logic_error("a watch is started once, was started again");
  thread_ = std::thread([this, on_silence = std::move(on_silence)] { run(on_silence); });
}

std::string CollectiveWatch::look() {
  std::string sentence;
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(open_, [&](const Open& collective) {
    try {
      if (collective.done()) return true;
    } catch (const std::exception& error) {
      if (sentence.empty()) sentence = collective.what + ": " + reason_of(error);
      return true;
    }
    if (sentence.empty() && now >= collective.deadline) {
      sentence = collective.what + ": not complete after " +
                 std::to_string(std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()) +
                 " s; another rank has stopped, or does something else";
    }
    return false;
  });
  return sentence;
}

void CollectiveWatch::run(const std::function<void(const std::string&)>& on_silence) {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::string sentence = look();
    if (!sentence.empty()) {
      lock.unlock();
      on_silence(sentence);
      return;
    }
    stop_requested_.wait_for(lock, std::min(kMostBetweenLooks, timeout_ / 4 + std::chrono::milliseconds(1)),
                             [this] { return stop_; });
  }
}

}  // namespace ghostshard::fsdp
