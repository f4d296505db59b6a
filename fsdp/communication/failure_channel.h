// One key in the run's store that says which rank gave up first, and why.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ghostshard::fsdp {

class FailureChannel {
 public:
  // store: a connection of its own, so that a rank that waits in another call can still announce and watch.
  FailureChannel(c10::intrusive_ptr<c10d::Store> store, int64_t rank) : store_(std::move(store)), rank_(rank) {}
  ~FailureChannel();

  // Returns after five seconds at the latest. The process must then end without destroying this object's store.
  void announce(const std::string& message) noexcept;
  // on_failure runs on the polling thread, at most once, and never for this rank's own announcement.
  void watch(std::function<void(const std::string&)> on_failure);

 private:
  void poll(const std::function<void(const std::string&)>& on_failure);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  std::mutex mutex_;
  std::condition_variable stop_requested_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ghostshard::fsdp
