// A computation at the same time as the caller's own, with which it shares nothing that either writes.
#pragma once

#include <future>
#include <thread>
#include <type_traits>

namespace ghostshard::accountant {

// In a thread of its own if there is a second processor and a thread to be had, else when its result is asked for.
template <class Solve>
std::future<std::invoke_result_t<Solve>> beside(const Solve& solve) {
  const bool alone = std::thread::hardware_concurrency() < 2;
  return std::async(alone ? std::launch::deferred : std::launch::async | std::launch::deferred, solve);
}

}  // namespace ghostshard::accountant
