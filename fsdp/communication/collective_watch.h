// Reports collectives on a device that do not complete. They are queued: nothing waits for them on the host, so nothing
// else would notice that a peer never came.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ghostshard::fsdp {

class CollectiveWatch {
 public:
  explicit CollectiveWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  // what: begins the message. done: returns true once the collective is complete and throws if it has failed; called on
  // the watching thread, and in add().
  void add(std::string what, std::function<bool()> done);
  // on_silence runs on the watching thread, at most once, for the first collective that has failed or is not complete
  // when the time-out has passed since it was added. Until start(), collectives are recorded but not reported.
  void start(std::function<void(const std::string&)> on_silence);
  int64_t open() const;  // collectives that are not known to be complete

 private:
  struct Open {
    std::string what;
    std::function<bool()> done;
    std::chrono::steady_clock::time_point deadline;
  };
  void run(const std::function<void(const std::string&)>& on_silence);
  // Removes complete collectives. Returns the message about the first one that has failed or is late, else an empty
  // one.
  std::string look();

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable stop_requested_;
  std::deque<Open> open_;  // in the order of their deadlines
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ghostshard::fsdp
