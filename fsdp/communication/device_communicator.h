// A Communicator for tensors on a device, over a c10d backend that queues its work there (NCCL). Internal to this
// folder.
//
// Nothing here waits on the host. A call's work goes to the backend's own stream, which first waits for what the
// caller's current stream holds by then; wait() makes the caller's current stream wait for it. Both by events, so that
// a block's gather travels while the block before it is computed, and buffers are reused without telling the allocator
// of other streams: PendingCollective keeps the tensors until its wait().
//
// Sums in rank order, as on Gloo: slices are exchanged, added up by their owner from rank 0 on, and gathered. (The
// backend's own all-reduce adds in an order of its choice, and would add the noise of rank 0 last.)
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "fsdp/communication/collective_watch.h"
#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

struct DeviceEndpoint {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::string name;  // for messages
  at::Device device;
  std::shared_ptr<CollectiveWatch> watch;  // of every call; none where whoever made the backend watches it
};

// Tries each collective once, so that a mistake in how the ranks are put together shows here. A collective; throws
// std::runtime_error.
std::unique_ptr<Communicator> make_device_communicator(DeviceEndpoint endpoint);

// On a group that torch.distributed made, by the name it is registered under; the same test. Every rank of the group
// calls it, and the group must carry nothing else from then on. torch.distributed's own watchdog ends a silence there.
// Throws std::invalid_argument for a name that is not registered, or a group whose backend for this device does not
// queue sends and receives together, as NCCL does.
std::unique_ptr<Communicator> adopt_device_communicator(const std::string& name, const std::string& group,
                                                        at::Device device);

}  // namespace ghostshard::fsdp
