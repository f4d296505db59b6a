#include "fsdp/communication/rank_mesh.h"

#include <csignal>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "fsdp/communication/communicator_mesh.h"
#include "fsdp/communication/device_backend.h"
#include "fsdp/communication/device_communicator.h"
#include "fsdp/communication/failure_channel.h"
#include "fsdp/communication/gloo_communicator.h"
#include "fsdp/communication/lone_communicator.h"
#include "fsdp/communication/reason.h"

namespace ghostshard::fsdp {
namespace {

// A rank that gives up must not wait long for a store that does not answer.
constexpr auto kAnnouncementTimeout = std::chrono::seconds(5);

std::string seconds_of(std::chrono::milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

// Gloo and the store write to sockets without MSG_NOSIGNAL. A handler of the program's own stays.
void report_closed_sockets_as_errors() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

// Which of the parallel lines of an axis this rank stands on, and where on that line.
struct Line {
  const char* name;  // of the communicator
  int64_t number;
  int64_t place;
  int64_t size;
};

class RankMesh final : public CommunicatorMesh {
 public:
  explicit RankMesh(const Rendezvous& where)
      : CommunicatorMesh(where.rank, where.shape, where.device),
        watch_(std::make_shared<CollectiveWatch>(where.timeout)) {
    report_closed_sockets_as_errors();
    join_store(where);
    const MeshShape& s = shape();
    const int64_t shard_line = replica() * s.model + model_rank();
    const int64_t replicate_line = shard_rank() * s.model + model_rank();
    // Host memory first: a rank that misses another can then still say so.
    control_ = join(where, {"control", 0, rank(), world_size()}, at::kCPU);
    check_alike();
    gather_ = join(where, {"gather", shard_line, shard_rank(), s.shard}, device());
    reduce_ = join(where, {"reduce", shard_line, shard_rank(), s.shard}, device());
    replicate_ = join(where, {"replicate", replicate_line, replica(), s.replicate}, device());
    model_ = join(where, {"model", data_rank(), model_rank(), s.model}, device());
  }
  // The communicators go first, because they use the watch and the store.
  ~RankMesh() override {
    for (auto* communicator : {&control_, &model_, &replicate_, &reduce_, &gather_}) communicator->reset();
  }

  void announce_failure(const std::string& message) noexcept override { failure_->announce(message); }
  void watch_failures(std::function<void(const std::string&)> on_failure) override {
    failure_->watch(on_failure);
    if (device().is_cpu()) return;
    watch_->start([this, on_failure = std::move(on_failure)](const std::string& sentence) {
      announce_failure(sentence);
      on_failure("rank " + std::to_string(rank()) + ": " + sentence);
    });
  }

 private:
  static std::string place_of_store(const Rendezvous& where) {
    return where.address + ":" + std::to_string(where.port);
  }
  std::string self() const { return "rank " + std::to_string(rank()) + " of " + std::to_string(world_size()); }

  static c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& where, bool serve) {
    c10d::TCPStoreOptions options;
    options.port = where.port;
    options.isServer = serve;
    options.multiTenant = true;
    options.waitWorkers = false;  // connecting the communicators waits for every rank anyway
    options.timeout = where.timeout;
    return c10::make_intrusive<c10d::TCPStore>(where.address, options);
  }

  void join_store(const Rendezvous& where) {
    try {
      store_ = connect_store(where, where.serve_store);
      const auto own_connection = connect_store(where, false);
      own_connection->setTimeout(kAnnouncementTimeout);
      failure_ = std::make_unique<FailureChannel>(c10::make_intrusive<c10d::PrefixStore>(where.prefix, own_connection),
                                                  where.rank);
    } catch (const std::exception& error) {
      const std::string reason = reason_of(error);
      const bool taken = where.serve_store && reason.find("EADDRINUSE") != std::string::npos;
      throw std::runtime_error(self() + " could not join the store at " + place_of_store(where) + " within " +
                               seconds_of(where.timeout) + ": " +
                               (taken ? "another program listens there; MASTER_PORT names another port" : reason));
    }
  }

  // The lines of ranks with another mesh would wait for members that never come.
  void check_alike() {
    const MeshShape& s = shape();
    const at::Tensor mine = at::tensor({s.replicate, s.shard, s.model, int64_t{device().is_cpu()}}, at::kLong);
    const at::Tensor all = at::empty({4 * world_size()}, at::kLong);
    control_->all_gather(all, mine)->wait();
    const auto of = [&](int64_t other) {
      const int64_t* values = all.const_data_ptr<int64_t>() + 4 * other;
      return MeshShape{.replicate = values[0], .shard = values[1], .model = values[2]}.text() +
             (values[3] != 0 ? " on CPUs" : " on devices");
    };
    for (int64_t other = 1; other < world_size(); ++other) {
      if (of(other) != of(0)) {
        throw std::invalid_argument("all ranks must be given the same mesh: rank 0 has " + of(0) + ", rank " +
                                    std::to_string(other) + " has " + of(other));
      }
    }
  }

  std::unique_ptr<Communicator> join(const Rendezvous& where, const Line& line, at::Device on) const {
    if (line.size == 1) return make_lone_communicator(on);
    const std::string keys = where.prefix + "/" + line.name + "/" + std::to_string(line.number);
    auto own_keys = c10::make_intrusive<c10d::PrefixStore>(keys, store_);
    try {
      return on.is_cpu() ? on_host(where, line, std::move(own_keys)) : on_device(where, line, std::move(own_keys), on);
    } catch (const std::exception& error) {
      throw std::runtime_error(self() + " could not connect communicator '" + line.name +
                               "' with every other rank within " + seconds_of(where.timeout) + " (store at " +
                               place_of_store(where) + "): " + reason_of(error));
    }
  }

  static std::unique_ptr<Communicator> on_host(const Rendezvous& where, const Line& line,
                                               c10::intrusive_ptr<c10d::Store> own_keys) {
    return make_gloo_communicator({.store = std::move(own_keys),
                                   .name = line.name,
                                   .rank = line.place,
                                   .size = line.size,
                                   .loopback = where.loopback,
                                   .local_address = where.local_address,
                                   .timeout = where.timeout});
  }

  std::unique_ptr<Communicator> on_device(const Rendezvous& where, const Line& line,
                                          c10::intrusive_ptr<c10d::Store> own_keys, at::Device on) const {
    auto backend = make_device_backend({.store = std::move(own_keys),
                                        .rank = line.place,
                                        .size = line.size,
                                        .timeout = where.timeout,
                                        .high_priority = std::string(line.name) == "gather"},
                                       on);
    return make_device_communicator({.backend = std::move(backend), .name = line.name, .device = on, .watch = watch_});
  }

  // Destroyed from the bottom up: the watching threads, then the store that they use.
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<FailureChannel> failure_;
  std::shared_ptr<CollectiveWatch> watch_;
};

}  // namespace

std::unique_ptr<Mesh> make_rank_mesh(const Rendezvous& rendezvous) { return std::make_unique<RankMesh>(rendezvous); }

}  // namespace ghostshard::fsdp
