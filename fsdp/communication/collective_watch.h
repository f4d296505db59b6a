// Ends the silence of collectives that are queued on a device: nobody waits for them on the host, so nobody would
// notice that a peer never came. Internal to this folder.
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

  // what: of the message. done: true once the collective is complete, an exception where it has failed; called on the
  // watching thread.
  void add(std::string what, std::function<bool()> done);
  // on_silence runs on the watching thread, at most once, for the first collective that has failed or is not complete
  // when the time-out has passed since it was added. Before this is called nothing is lost, only nothing is said.
  void start(std::function<void(const std::string&)> on_silence);
  int64_t open() const;  // collectives that are not known to be complete

 private:
  struct Open {
    std::string what;
    std::function<bool()> done;
    std::chrono::steady_clock::time_point deadline;
  };
  void run(const std::function<void(const std::string&)>& on_silence);
  // Takes what is complete out; the sentence about what is not and should be, or nothing.
  std::string look();

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable stop_requested_;
  std::deque<Open> open_;  // in the order of their deadlines
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ghostshard::fsdp
