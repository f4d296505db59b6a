// Host memory that a training step allocates, frees and allocates again.
#pragma once

namespace ghostshard::fsdp {

// For a program's first line: makes freed tensor memory fit the next tensor of the same size, and keeps it mapped.
//
// Activations come and go every layer. glibc maps and unmaps each large one, paying for fresh zeroed pages; and its
// aligned allocations ask for more than they keep, so that the hole a tensor leaves is too small for its like (a
// step's peak then grows by what it allocates while it frees). Here alignment is done inside an ordinary allocation,
// and the heap is never trimmed. Process-wide, for tensors allocated from now on; call it once, before threads start.
void reuse_host_memory();

}  // namespace ghostshard::fsdp
