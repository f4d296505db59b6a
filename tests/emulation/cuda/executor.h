// Runs a kernel's blocks and threads on one CPU thread, in orders that a device may choose and a test would not.
//
// Each thread of a block is a fiber that runs until it meets a barrier or a collective of its warp. Blocks, and after
// every barrier the threads, come in another order, drawn from the schedule's seed: a kernel that lacks a barrier, or
// whose result depends on which block comes first, gives other bits under another seed. A block's shared memory is
// allocated with exactly the bytes of the launch and filled with NaN, so that what nobody wrote is seen and what lies
// outside is found by AddressSanitizer, as it is for device memory, which the host cannot touch while no kernel runs
// (tests/emulation/device/memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace ghostshard::emulation {

// The kernel does what no device defines: threads that wait for others that never come, lanes at different collectives.
class Fault : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Shape {
  int64_t blocks;
  int threads;
  size_t shared_bytes;
};

// The seed of the next launch; each launch after it has another. 0, 1, 2, … from the start of the program otherwise.
void set_schedule(uint64_t seed);

// Throws Fault. Not re-entrant; threads of the host take turns.
void run(const Shape& shape, const std::function<void()>& thread);

// For code inside a thread of a block.
void* shared_memory(size_t bytes);  // throws Fault where the launch gave fewer
void block_barrier();
// All lanes of the warp meet; the last to come calls all(arguments of lanes 0…31), then all go on. `what` names the
// operation and must be the same for all.
constexpr int kLanes = 32;
void warp_collective(const char* what, void* argument, void (*all)(void* const (&arguments)[kLanes]));
int lane();

// Copies that a thread asks for and does not wait for. Until it does, garbage (0xff, NaN in every format) is at `to`;
// only then is `from` read: `present` bytes, and zeros up to `bytes`. A thread that ends with copies that it never
// waited for is a Fault.
struct Copy {
  void* to;
  const void* from;
  int present, bytes;
};
void copy_later(const Copy& copy);
void commit_copies();  // makes a group of those since the last call
void wait_for_copies(int pending);

}  // namespace ghostshard::emulation
