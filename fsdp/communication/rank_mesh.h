// The mesh of one rank among several that meet at a store: Gloo for the host's tensors, the device's backend for those
// of a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// How the ranks find each other.
struct Rendezvous {
  std::string address;  // of the store's host
  uint16_t port = 0;
  int64_t rank = 0;
  MeshShape shape;
  bool serve_store = false;   // this rank serves the store; otherwise it is a client
  bool loopback = false;      // all ranks run on this host
  std::string local_address;  // of this host as it reaches the store; empty if unknown
  std::string prefix;         // keeps the keys of a restarted run apart from those of the run before it
  std::chrono::milliseconds timeout{};
  at::Device device = at::kCPU;
};

// Connects with every other rank; all ranks call it. std::runtime_error with this rank, the store's place and the
// reason if the ranks do not meet within the time-out; std::invalid_argument, the same on every rank, if their meshes
// differ. From then on the process ignores SIGPIPE, unless it has a handler: a rank that writes to one that is gone
// would end without a word, where it must name the call and the communicator.
std::unique_ptr<Mesh> make_rank_mesh(const Rendezvous& rendezvous);

}  // namespace ghostshard::fsdp
