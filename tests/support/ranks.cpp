#include "tests/support/ranks.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

namespace ghostshard::tests {

struct LocalStore::Server {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

LocalStore::LocalStore() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  server_ = std::make_unique<Server>(Server{c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)});
}

LocalStore::~LocalStore() = default;

int LocalStore::port() const { return server_->store->getPort(); }

void run_ranks(int64_t world_size, const std::function<void(fsdp::Mesh&)>& body, const RunRanksOptions& options) {
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

}  // namespace ghostshard::tests
