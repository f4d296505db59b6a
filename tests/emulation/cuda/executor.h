// Runs a kernel's blocks and threads on one CPU thread, in orders that a device may choose and a test would not.
//
// Each thread of a block is a fiber that runs until it meets a barrier or a collective of its warp. The schedule's seed
// decides the order of the blocks and, anew after every barrier, that of the threads. A kernel that lacks a barrier, or
// whose result depends on the order of blocks, therefore gives other bits under another seed. A block's shared memory
// has exactly the bytes of the launch and begins as NaN: a value that nobody wrote shows, and AddressSanitizer finds an
// access outside. The same holds for device memory, which the host cannot touch unless a kernel runs
// (tests/emulation/device/memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace ghostshard::emulation {

// The kernel's behaviour is undefined on a device: threads wait for others that never come, or lanes of a warp are at
// different collectives.
class Fault : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Shape {
  int64_t blocks;
  int threads;
  size_t shared_bytes;
};

// Sets the seed of the next launch; each later launch has the next number. Without a call the first launch of the
// program has 0.
void set_schedule(uint64_t seed);

// Throws Fault. Not re-entrant. Threads of the host take turns.
void run(const Shape& shape, const std::function<void()>& thread);

// For code inside a thread of a block.
void* shared_memory(size_t bytes);  // throws Fault if the launch gave fewer
void block_barrier();
// All lanes of the warp meet. The last to arrive calls all(arguments of lanes 0 to 31), then all continue. `what` names
// the operation and must be the same for all lanes.
constexpr int kLanes = 32;
void warp_collective(const char* what, void* argument, void (*all)(void* const (&arguments)[kLanes]));
int lane();

// A copy that a thread requests without waiting for it. Until the thread waits, `to` holds garbage (0xff, NaN in every
// format). The wait reads `present` bytes at `from` and fills up to `bytes` with zeros. A thread that ends before it
// has waited for its copies is a Fault.
struct Copy {
  void* to;
  const void* from;
  int present, bytes;
};
void copy_later(const Copy& copy);
void commit_copies();  // makes one group of the copies since the last call
void wait_for_copies(int pending);

}  // namespace ghostshard::emulation
