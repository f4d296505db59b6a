// A Communicator on torch's own Gloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

struct GlooEndpoint {
  c10::intrusive_ptr<c10d::Store> store;  // where the ranks find each other; its keys belong to this communicator
  std::string name;                       // for messages
  int64_t rank = 0;
  int64_t size = 1;
  bool loopback = false;      // all ranks run on this host
  std::string local_address;  // of this host as the others reach it; if empty, Gloo looks up the host's name
  std::chrono::milliseconds timeout{};
};

// Connects to every other rank and tries each collective once: the packaged Gloo headers are not those of the library
// inside torch, so a layout that drifted must show here and not in a sum. Throws std::runtime_error.
std::unique_ptr<Communicator> make_gloo_communicator(const GlooEndpoint& endpoint);

// On a Gloo group that torch.distributed made; `group` is the name it is registered under. Tries each collective once
// too. Every rank of the group calls it, and from then on the group must carry nothing else. Throws
// std::invalid_argument for a name that is not registered or a group without Gloo for the CPU.
std::unique_ptr<Communicator> adopt_gloo_communicator(const std::string& name, const std::string& group);

}  // namespace ghostshard::fsdp
