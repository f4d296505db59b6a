// A function that can be suspended and resumed: one thread of a block.
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

  // Drops an unfinished body; the next resume() calls body(argument). body must not throw.
  void start(void (*body)(void*), void* argument);
  // From outside: runs until the fiber suspends or its body returns.
  void resume();
  // From inside: returns to the caller of resume().
  void suspend();

 private:
  static void enter(unsigned high, unsigned low);

  std::unique_ptr<std::byte[]> stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  // The state that sanitizers need at each change of stacks.
  void* fake_stack_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_stack_size_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace ghostshard::emulation
