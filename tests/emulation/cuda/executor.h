// Runs a kernel's blocks and threads on one CPU thread, in orders that a device may choose.
//
// Each thread of a block is a fiber that runs until it meets a barrier or a collective of its warp. The order of the
// blocks, and after every barrier that of the threads, is drawn from the schedule's seed: a kernel that lacks a
// barrier, or whose result depends on the order of blocks, gives other bits under another seed. A block's shared memory
// has exactly the bytes of the launch and is filled with NaN, so reads of unwritten memory show. AddressSanitizer finds
// accesses beyond it, as it does for device memory, which the host cannot touch while no kernel runs
// (tests/emulation/device/memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace ghostshard::emulation {

// The kernel does something that no device defines: threads wait for others that never come, or lanes meet at different
// collectives.
class Fault : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Shape {
  int64_t blocks;
  int threads;
  size_t shared_bytes;
};

// Sets the seed of the next launch; each later launch has the next number. Without a call seeds are 0, 1, 2, … from the
// start of the program.
void set_schedule(uint64_t seed);

// Throws Fault. Not re-entrant; threads of the host take turns.
void run(const Shape& shape, const std::function<void()>& thread);

// For code inside a thread of a block.
void* shared_memory(size_t bytes);  // throws Fault if the launch gave fewer
void block_barrier();
// All lanes of the warp meet; the last lane calls all(arguments of lanes 0…31), then all continue. `what` names the
// operation and must be the same for all lanes.
constexpr int kLanes = 32;
void warp_collective(const char* what, void* argument, void (*all)(void* const (&arguments)[kLanes]));
int lane();

// An asynchronous copy of a thread. Until the thread waits for it, `to` holds garbage (0xff, NaN in every format); only
// then is `from` read: `present` bytes, then zeros up to `bytes`. A thread that ends without having waited for its
// copies is a Fault.
struct Copy {
  void* to;
  const void* from;
  int present, bytes;
};
void copy_later(const Copy& copy);
void commit_copies();  // makes the copies since the last call a group
void wait_for_copies(int pending);

}  // namespace ghostshard::emulation
