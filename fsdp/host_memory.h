// Host memory that a training step allocates, frees and allocates again.
#pragma once

namespace ghostshard::fsdp {

// Makes freed tensor memory fit the next tensor of the same size, and keeps it mapped. For a program's first line.
//
// Activations come and go with every layer. glibc maps and unmaps each large one, and each time pays for fresh zeroed
// pages. Its aligned allocations ask for more than they keep, so that the hole that a tensor leaves is too small for
// the next tensor of that size (a step that allocates while it frees then has a higher peak). This function aligns
// within an ordinary allocation and never trims the heap. Process-wide, for tensors allocated from now on; call it
// once, before threads start.
void reuse_host_memory();

}  // namespace ghostshard::fsdp
