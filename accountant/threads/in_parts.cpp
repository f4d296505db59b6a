#include "accountant/threads/in_parts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ghostshard::accountant {
namespace {

constexpr size_t kParts =
    16;  // at most; the first nodes of a line take longest, so threads take one part after another
constexpr double kWorthwhile = 1e6;  // nanoseconds; a thread begins in a tenth of that
constexpr unsigned kMostThreads = 8;

}  // namespace

void in_parts(size_t n, size_t granule, double nanoseconds, const std::function<void(size_t first, size_t end)>& part) {
  if (n == 0) return;
  if (static_cast<double>(n) * nanoseconds < kWorthwhile || n < 2 * granule) return part(0, n);
  const size_t each = (n / kParts / granule + 1) * granule;
  std::atomic<size_t> next = 0;
  std::exception_ptr failed;
  std::mutex failing;
  const unsigned wanted = std::min(std::thread::hardware_concurrency(), kMostThreads);
  const auto work = [&] {
    try {
      for (size_t first = next.fetch_add(each); first < n; first = next.fetch_add(each))
        part(first, std::min(first + each, n));
    } catch (...) {
      next = n;
      const std::lock_guard<std::mutex> guard(failing);
      if (!failed) failed = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (bool can = true; can && others.size() + 1 < wanted;) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      can = false;  // no more threads for this user: those that there are do it
    }
  }
  work();
  for (std::thread& other : others) other.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace ghostshard::accountant
