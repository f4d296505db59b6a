#include "tests/emulation/cuda/fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace ghostshard::emulation {
namespace {

constexpr size_t kStackBytes = size_t{1} << 17;  // instrumented frames are large

// The sanitizers' calls, nothing without them.
#if defined(__SANITIZE_ADDRESS__)
void leaving(void** fake_stack, const void* to, size_t size) { __sanitizer_start_switch_fiber(fake_stack, to, size); }
void arrived(void* fake_stack, const void** from, size_t* size) {
  __sanitizer_finish_switch_fiber(fake_stack, from, size);
}
void forget(void* stack) { __asan_unpoison_memory_region(stack, kStackBytes); }
#else
void leaving(void**, const void*, size_t) {}
void arrived(void*, const void**, size_t*) {}
void forget(void*) {}
#endif
#if defined(__SANITIZE_THREAD__)
void* tsan_create() { return __tsan_create_fiber(0); }
void tsan_destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
void* tsan_current() { return __tsan_get_current_fiber(); }
void tsan_switch(void* fiber) { __tsan_switch_to_fiber(fiber, 0); }
#else
void* tsan_create() { return nullptr; }
void tsan_destroy(void*) {}
void* tsan_current() { return nullptr; }
void tsan_switch(void*) {}
#endif

}  // namespace

Fiber::Fiber() : stack_(new std::byte[kStackBytes]), tsan_fiber_(tsan_create()) {}

Fiber::~Fiber() { tsan_destroy(tsan_fiber_); }

// makecontext passes only ints, so the pointer comes in halves.
void Fiber::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | low);
  arrived(nullptr, &self->outer_stack_, &self->outer_stack_size_);
  self->body_(self->argument_);
  // The fiber does not come back: null instead of a place for this stack's state.
  leaving(nullptr, self->outer_stack_, self->outer_stack_size_);
  tsan_switch(self->tsan_outside_);
  setcontext(&self->outside_);
}

void Fiber::start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  forget(stack_.get());
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

void Fiber::resume() {
  void* fake_stack = nullptr;
  tsan_outside_ = tsan_current();
  leaving(&fake_stack, stack_.get(), kStackBytes);
  tsan_switch(tsan_fiber_);
  swapcontext(&outside_, &inside_);
  arrived(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
  leaving(&fake_stack_, outer_stack_, outer_stack_size_);
  tsan_switch(tsan_outside_);
  swapcontext(&inside_, &outside_);
  arrived(fake_stack_, &outer_stack_, &outer_stack_size_);
}

}  // namespace ghostshard::emulation
