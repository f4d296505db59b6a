// Runs W ranks as threads of one test, joined by a mesh on 127.0.0.1.
//
//   run_ranks(4, [](Mesh& mesh) { ... });
//
// Each rank is a fresh thread with torch's defaults (grad mode on, autograd state of its own: both are thread-local);
// anything shared between ranks must be const or guarded. A rank that throws loses its mesh, so the others' collectives
// end with an error instead of waiting. The first exception in time is rethrown as std::runtime_error "rank R: ...".
// GoogleTest's EXPECT_* may be used on the ranks; ASSERT_* returns from that rank alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "fsdp/mesh.h"

namespace ghostshard::tests {

// A store on a port that the operating system chose, as torchrun's agent serves it.
class LocalStore {
 public:
  LocalStore();
  ~LocalStore();
  int port() const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

struct RunRanksOptions {
  std::chrono::seconds collective_timeout{30};
  std::chrono::seconds test_timeout{120};  // the process is aborted after it: threads cannot be stopped
  std::optional<fsdp::MeshShape> shape;    // default: all ranks on the shard axis
  // Puts each rank's mesh where its models are to be; default: on the CPU.
  std::function<std::unique_ptr<fsdp::Mesh>(std::unique_ptr<fsdp::Mesh>)> place = nullptr;
};

void run_ranks(int64_t world_size, const std::function<void(fsdp::Mesh&)>& body, const RunRanksOptions& options = {});

// The same on a mesh of that shape.
inline void run_mesh(const fsdp::MeshShape& shape, const std::function<void(fsdp::Mesh&)>& body) {
  run_ranks(shape.ranks(), body, {.shape = shape});
}

}  // namespace ghostshard::tests
