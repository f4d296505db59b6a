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
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "fsdp/mesh.h"

namespace ghostshard::tests {

// A store on a port that the operating system chose, as torchrun's agent serves it.
class LocalStore {
 public:
  LocalStore() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  int port() const { return store_->getPort(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

struct RunRanksOptions {
  std::chrono::seconds collective_timeout{30};
  std::chrono::seconds test_timeout{120};  // the process is aborted after it: threads cannot be stopped
  std::optional<fsdp::MeshShape> shape;    // default: all ranks on the shard axis
  // Puts each rank's mesh where its models are to be; default: on the CPU.
  std::function<std::unique_ptr<fsdp::Mesh>(std::unique_ptr<fsdp::Mesh>)> place = nullptr;
};

inline void run_ranks(int64_t world_size, const std::function<void(fsdp::Mesh&)>& body,
                      const RunRanksOptions& options = {}) {
  const LocalStore store;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t running = world_size;
  std::string first_error;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto note = [&](const std::string& what) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (first_error.empty()) first_error = "rank " + std::to_string(rank) + ": " + what;
      };
      try {
        auto mesh = fsdp::Mesh::connect("127.0.0.1", store.port(), rank, world_size, /*serve_store=*/false,
                                        options.collective_timeout, options.shape);
        if (options.place) mesh = options.place(std::move(mesh));
        try {
          body(*mesh);
        } catch (const std::exception& e) {
          note(e.what());  // before the mesh is lost and the others fail in turn
        } catch (...) {
          note("an exception that is no std::exception");
        }
      } catch (const std::exception& e) {
        note(e.what());
      }
      const std::lock_guard<std::mutex> lock(mutex);
      --running;
      changed.notify_all();
    });
  }
  {
    std::unique_lock<std::mutex> lock(mutex);
    if (!changed.wait_for(lock, options.test_timeout, [&] { return running == 0; })) {
      std::fprintf(stderr, "run_ranks: %lld of %lld ranks still run after the test's time-out%s%s\n",
                   static_cast<long long>(running), static_cast<long long>(world_size), first_error.empty() ? "" : "; ",
                   first_error.c_str());
      std::abort();
    }
  }
  for (auto& thread : threads) thread.join();
  if (!first_error.empty()) throw std::runtime_error(first_error);
}

// The same on a mesh of that shape.
inline void run_mesh(const fsdp::MeshShape& shape, const std::function<void(fsdp::Mesh&)>& body) {
  run_ranks(shape.ranks(), body, {.shape = shape});
}

}  // namespace ghostshard::tests
