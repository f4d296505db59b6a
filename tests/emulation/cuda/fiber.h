// A function that can stop in the middle and be gone on with: one thread of a block.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <memory>

namespace ghostshard::emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Forgets what it was doing and will call body(argument) when resumed first. body must not throw.
  void start(void (*body)(void*), void* argument);
  // From outside: runs until the fiber suspends or its body returns.
  void resume();
  // From inside.
  void suspend();

 private:
  static void enter(unsigned high, unsigned low);

  std::unique_ptr<std::byte[]> stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  // What the sanitizers must be told of a change of stacks.
  void* fake_stack_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_stack_size_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace ghostshard::emulation
