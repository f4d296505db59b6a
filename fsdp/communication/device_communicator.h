// A Communicator for tensors on a device, over a c10d backend that queues its work there (NCCL).
//
// No call but barrier() waits on the host. A call's work goes to the backend's own stream, which first waits for
// everything that the caller's current stream holds by then; wait() makes the caller's current stream wait for that
// work. Both waits are events on the device. So a block is gathered while the block before it is computed, and buffers
// are reused without telling the allocator of other streams: a PendingCollective keeps its tensors until its wait().
//
// Sums are in rank order, as on Gloo (fsdp/communication/rank_communicator.h). The backend's own all-reduce adds in an
// order of its choice, and would add the starting values of rank 0 last.
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
  std::shared_ptr<CollectiveWatch> watch;  // of every call; null if the backend's owner watches it
};

// Tries each collective once, so that a mistake in how the ranks are put together shows here. A collective. Throws
// std::runtime_error.
std::unique_ptr<Communicator> make_device_communicator(DeviceEndpoint endpoint);

// On a group that torch.distributed made; `group` is the name it is registered under. Tries each collective once too.
// Every rank of the group calls it, and from then on the group must carry nothing else. torch.distributed's own
// watchdog ends a collective that a peer never joins. Throws std::invalid_argument for a name that is not registered,
// or for a group whose backend for this device does not queue sends and receives together, as NCCL does.
std::unique_ptr<Communicator> adopt_device_communicator(const std::string& name, const std::string& group,
                                                        at::Device device);

}  // namespace ghostshard::fsdp
