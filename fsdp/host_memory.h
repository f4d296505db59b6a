// Host memory that a training step allocates, frees and allocates again.
#pragma once

namespace ghostshard::fsdp {

// Makes freed tensor memory fit the next tensor of the same size, and keeps it mapped. Process-wide, for tensors
// allocated from now on; later calls do nothing. Best in a program's first line.
//
// Activations come and go with every layer. glibc maps and unmaps each large one, and each time pays for fresh zeroed
// pages. Its aligned allocations ask for more than they keep, so that the hole that a tensor leaves is too small for
// the next tensor of that size (a step that allocates while it frees then has a higher peak). This function aligns
// within an ordinary allocation and never trims the heap.
//
// Measured beside other heaps (two ranks on two cores, two microbatches, medians of three interleaved steps, each with
// a process of its own; time of a step over this one's, peak memory in MiB):
//                     28.9M V=50,257 T=100   21M V=8,192 T=512
//   C++   this             1.00  809             1.00  702
//         glibc            1.15  860              .99  825
//         glibc, no mmap   1.05  952              .99  840
//         jemalloc          .98  816             1.21  675
//           never purging   .97  870             1.06  766
//         mimalloc          .99  810             1.12  688
//           never purging   .96  820             1.07  704
// jemalloc and mimalloc would have to be there before the program starts: a Python module cannot load the former (its
// thread-local storage is static). In Python: this 1.00 and 1.00; glibc and a range of mapped addresses for the large
// tensors, as before it, 1.41 and 1.12; jemalloc that never purges .88 and .87.
void reuse_host_memory();

// The most that this program has had resident, in MiB (VmHWM). getrusage() would also count the program that it was
// started in place of: ru_maxrss survives exec, and under torchrun it is the launcher's.
double peak_host_memory_mib();

}  // namespace ghostshard::fsdp
