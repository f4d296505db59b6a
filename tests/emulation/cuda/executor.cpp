#include "tests/emulation/cuda/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulation/cuda/cuda_runtime.h"
#include "tests/emulation/cuda/fiber.h"
#include "tests/emulation/device/memory.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace ghostshard::emulation {
namespace {

enum class State { kReady, kAtBarrier, kAtCollective, kDone };

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Thread {
  int index = 0;
  State state = State::kReady;
  std::vector<Copy> copies;  // of no group yet
  std::deque<std::vector<Copy>> copy_groups;
  Fiber fiber;
};

// A warp's meeting place.
struct Warp {
  const char* what = nullptr;
  int arrived = 0;
  void* arguments[kLanes] = {};
};

class Executor {
 public:
  void run(const Shape& shape, const std::function<void()>& thread, uint64_t seed);

  void* shared_memory(size_t bytes);
  void block_barrier() { wait(State::kAtBarrier); }
  void warp_collective(const char* what, void* argument, void (*all)(void* const (&arguments)[kLanes]));
  Thread& current() const { return *current_; }

 private:
  void run_block(unsigned block);
  void run_thread();
  // Runs the threads that are ready, in a new order. Returns whether there were any.
  bool run_ready_threads();
  bool run_ready_threads_of(std::vector<int>& threads);
  void release_barrier();
  void wait(State state) {
    current_->state = state;
    current_->fiber.suspend();
  }

  const Shape* shape_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Thread>> threads_;  // kept from launch to launch
  std::vector<int> order_;                        // of all threads of the block
  std::vector<std::vector<int>> warp_orders_;     // and of each warp's
  std::vector<Warp> warps_;
  std::unique_ptr<void, Free> shared_;
  Thread* current_ = nullptr;
  std::exception_ptr failure_;
};

Executor& executor() {
  static Executor instance;
  return instance;
}

uint64_t& next_seed() {
  static uint64_t seed = 0;
  return seed;
}

void Executor::run(const Shape& shape, const std::function<void()>& thread, uint64_t seed) {
  shape_ = &shape;
  body_ = &thread;
  random_.seed(seed);
  while (static_cast<int>(threads_.size()) < shape.threads) {
    threads_.push_back(std::make_unique<Thread>());
    threads_.back()->index = static_cast<int>(threads_.size()) - 1;
  }
  order_.resize(static_cast<size_t>(shape.threads));
  std::iota(order_.begin(), order_.end(), 0);
  warp_orders_.assign(static_cast<size_t>(shape.threads + kLanes - 1) / kLanes, {});
  for (const int t : order_) warp_orders_[static_cast<size_t>(t / kLanes)].push_back(t);
  blockDim = dim3(static_cast<unsigned>(shape.threads));
  gridDim = dim3(static_cast<unsigned>(shape.blocks));
  std::vector<unsigned> blocks(static_cast<size_t>(shape.blocks));
  std::iota(blocks.begin(), blocks.end(), 0U);
  std::ranges::shuffle(blocks, random_);
  for (const unsigned block : blocks) run_block(block);
}

void Executor::run_block(unsigned block) {
  blockIdx = dim3(block, 0, 0);
  shared_.reset(std::malloc(std::max<size_t>(1, shape_->shared_bytes)));
  std::memset(shared_.get(), 0xff, shape_->shared_bytes);
  warps_.assign(static_cast<size_t>(shape_->threads + kLanes - 1) / kLanes, {});
  failure_ = nullptr;
  for (const int t : order_) {
    Thread& thread = *threads_[static_cast<size_t>(t)];
    thread.state = State::kReady;
    thread.copies.clear();
    thread.copy_groups.clear();
    thread.fiber.start([](void* self) { static_cast<Executor*>(self)->run_thread(); }, this);
  }
  const auto count = [this](State state) {
    return std::ranges::count_if(order_, [&](int t) { return threads_[static_cast<size_t>(t)]->state == state; });
  };
  while (count(State::kDone) < shape_->threads) {
    const bool ran = run_ready_threads();
    if (failure_) std::rethrow_exception(failure_);
    const auto waiting = count(State::kAtBarrier);
    if (waiting == shape_->threads) {
      release_barrier();
    } else if (!ran) {
      throw Fault("a block cannot go on: of " + std::to_string(shape_->threads) + " threads " +
                  std::to_string(waiting) + " wait at a barrier, " + std::to_string(count(State::kAtCollective)) +
                  " at a collective, " + std::to_string(count(State::kDone)) + " have ended");
    }
  }
}

// Either all threads continue until they next meet others, or one warp after the other runs as far as it can without
// the rest of the block: a warp that writes too early and a warp that reads too late are different faults.
bool Executor::run_ready_threads() {
  if (random_() % 2 == 0) {
    return run_ready_threads_of(order_);
  }
  std::ranges::shuffle(warp_orders_, random_);
  bool ran = false;
  for (std::vector<int>& threads : warp_orders_) {
    while (!failure_ && run_ready_threads_of(threads)) ran = true;
  }
  return ran;
}

bool Executor::run_ready_threads_of(std::vector<int>& threads) {
  std::ranges::shuffle(threads, random_);
  bool ran = false;
  for (const int t : threads) {
    Thread& thread = *threads_[static_cast<size_t>(t)];
    if (thread.state != State::kReady) continue;
    ran = true;
    current_ = &thread;
    threadIdx = dim3(static_cast<unsigned>(t), 0, 0);
    thread.fiber.resume();
    if (failure_) break;
  }
  return ran;
}

void Executor::run_thread() {
  try {
    (*body_)();
    const auto& groups = current_->copy_groups;
    if (!current_->copies.empty() || std::ranges::any_of(groups, [](const auto& group) { return !group.empty(); })) {
      throw Fault("a thread ends with copies that it has not waited for");
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
  current_->state = State::kDone;
}

void Executor::release_barrier() {
  for (const int t : order_) threads_[static_cast<size_t>(t)]->state = State::kReady;
}

void* Executor::shared_memory(size_t bytes) {
  if (bytes > shape_->shared_bytes) {
    throw Fault("the kernel uses " + std::to_string(bytes) + " bytes of shared memory, the launch gave it " +
                std::to_string(shape_->shared_bytes));
  }
  return shared_.get();
}

void Executor::warp_collective(const char* what, void* argument, void (*all)(void* const (&arguments)[kLanes])) {
  const int index = current_->index;
  Warp& warp = warps_[static_cast<size_t>(index / kLanes)];
  if (warp.arrived > 0 && std::strcmp(warp.what, what) != 0) {
    throw Fault(std::string("lanes of one warp meet at different operations, ") + warp.what + " and " + what);
  }
  warp.what = what;
  warp.arguments[index % kLanes] = argument;
  if (++warp.arrived < kLanes) {
    return wait(State::kAtCollective);
  }
  all(warp.arguments);
  warp.arrived = 0;
  const int first = index / kLanes * kLanes;
  for (int t = first; t < first + kLanes; ++t) threads_[static_cast<size_t>(t)]->state = State::kReady;
}

}  // namespace

void set_schedule(uint64_t seed) { next_seed() = seed; }

void run(const Shape& shape, const std::function<void()>& thread) {
  const OpenDeviceMemory open;  // one launch at a time
  executor().run(shape, thread, next_seed()++);
}

void* shared_memory(size_t bytes) { return executor().shared_memory(bytes); }
void block_barrier() { executor().block_barrier(); }
void warp_collective(const char* what, void* argument, void (*all)(void* const (&arguments)[kLanes])) {
  executor().warp_collective(what, argument, all);
}
int lane() { return executor().current().index % kLanes; }

void copy_later(const Copy& copy) {
  std::memset(copy.to, 0xff, static_cast<size_t>(copy.bytes));
  executor().current().copies.push_back(copy);
}

void commit_copies() {
  Thread& thread = executor().current();
  thread.copy_groups.push_back(std::exchange(thread.copies, {}));
}

void wait_for_copies(int pending) {
  auto& groups = executor().current().copy_groups;
  for (; groups.size() > static_cast<size_t>(pending); groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.present));
    }
  }
}

}  // namespace ghostshard::emulation
