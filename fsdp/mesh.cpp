#include "fsdp/mesh.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp/failure_channel.h"
#include "fsdp/gloo_communicator.h"

namespace ghostshard::fsdp {
namespace {

// A rank that gives up must not wait long for a store that does not answer.
constexpr auto kAnnouncementTimeout = std::chrono::seconds(5);

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int64_t required_integer(const char* name, int64_t lowest, int64_t highest) {
  const auto text = environment(name);
  const std::string rule = std::string(name) + " must be an integer from " + std::to_string(lowest) + " to " +
                           std::to_string(highest) + ", got ";
  if (!text) throw std::invalid_argument(rule + "no value (is the program started by torchrun?)");
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || !(value >= lowest && value <= highest)) {
    throw std::invalid_argument(rule + "'" + *text + "'");
  }
  return value;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

class SingleMesh final : public Mesh {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  const MeshShape& shape() const override { return shape_; }
  Communicator& gather() override { return *communicator_; }
  Communicator& reduce() override { return *communicator_; }
  Communicator& control() override { return *communicator_; }
  void announce_failure(const std::string&) noexcept override {}
  void watch_failures(std::function<void(const std::string&)>) override {}

 private:
  MeshShape shape_;
  std::unique_ptr<Communicator> communicator_ = make_lone_communicator();
};

struct Rendezvous {
  std::string address;
  uint16_t port = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
  bool serve_store = false;
  bool loopback = false;
  std::string prefix;  // keeps the keys of a restarted run apart from those of the run before it
  std::chrono::milliseconds timeout{};
};

class GlooMesh final : public Mesh {
 public:
  explicit GlooMesh(const Rendezvous& where) : rank_(where.rank), shape_{.shard = where.world_size} {
    const std::string self = "rank " + std::to_string(where.rank) + " of " + std::to_string(where.world_size);
    const std::string place = where.address + ":" + std::to_string(where.port);
    const auto seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(where.timeout).count());
    try {
      store_ = connect_store(where, where.serve_store);
      const auto own_connection = connect_store(where, false);
      own_connection->setTimeout(kAnnouncementTimeout);
      failure_ = std::make_unique<FailureChannel>(c10::make_intrusive<c10d::PrefixStore>(where.prefix, own_connection),
                                                  where.rank);
    } catch (const std::exception& error) {
      throw std::runtime_error(self + " could not join the store at " + place + " within " + seconds +
                               " s: " + reason_of(error));
    }
    const auto communicator = [&](const std::string& name) {
      try {
        return make_gloo_communicator(
            {.store = c10::make_intrusive<c10d::PrefixStore>(where.prefix + "/" + name, store_),
             .name = name,
             .rank = where.rank,
             .size = where.world_size,
             .loopback = where.loopback,
             .timeout = where.timeout});
      } catch (const std::exception& error) {
        throw std::runtime_error(self + " could not connect communicator '" + name + "' with every other rank within " +
                                 seconds + " s (store at " + place + "): " + reason_of(error));
      }
    };
    gather_ = communicator("gather");
    reduce_ = communicator("reduce");
    control_ = communicator("control");
  }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return shape_.shard; }
  const MeshShape& shape() const override { return shape_; }
  Communicator& gather() override { return *gather_; }
  Communicator& reduce() override { return *reduce_; }
  Communicator& control() override { return *control_; }
  void announce_failure(const std::string& message) noexcept override { failure_->announce(message); }
  void watch_failures(std::function<void(const std::string&)> on_failure) override {
    failure_->watch(std::move(on_failure));
  }

 private:
  static c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& where, bool serve) {
    c10d::TCPStoreOptions options;
    options.port = where.port;
    options.isServer = serve;
    options.multiTenant = true;
    options.waitWorkers = false;  // connecting the communicators waits for every rank anyway
    options.timeout = where.timeout;
    return c10::make_intrusive<c10d::TCPStore>(where.address, options);
  }

  int64_t rank_;
  MeshShape shape_;
  // Destroyed from the bottom up: the communicators, the watching thread, then the store that they use.
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<FailureChannel> failure_;
  std::unique_ptr<Communicator> gather_, reduce_, control_;
};

}  // namespace

std::unique_ptr<Mesh> Mesh::single() { return std::make_unique<SingleMesh>(); }

std::unique_ptr<Mesh> Mesh::connect(const std::string& address, int port, int64_t rank, int64_t world_size,
                                    bool serve_store, std::chrono::seconds timeout) {
  const auto require = [](bool holds, const std::string& rule, int64_t found) {
    if (!holds) throw std::invalid_argument(rule + ", got " + std::to_string(found));
  };
  require(world_size >= 1, "world_size must be at least 1", world_size);
  require(rank >= 0 && rank < world_size, "rank must be from 0 to " + std::to_string(world_size - 1), rank);
  require(port >= 1 && port <= 65535, "port must be from 1 to 65535", port);
  require(timeout.count() > 0, "timeout must be positive", timeout.count());
  if (world_size == 1) return single();
  return std::make_unique<GlooMesh>(Rendezvous{.address = address,
                                               .port = static_cast<uint16_t>(port),
                                               .rank = rank,
                                               .world_size = world_size,
                                               .serve_store = serve_store,
                                               .loopback = is_loopback(address),
                                               .prefix = "ghostshard/0",
                                               .timeout = timeout});
}

std::unique_ptr<Mesh> Mesh::from_environment(std::chrono::seconds timeout) {
  if (!environment("RANK") && !environment("WORLD_SIZE")) return single();
  constexpr int64_t kMostRanks = 1 << 20;
  const int64_t world_size = required_integer("WORLD_SIZE", 1, kMostRanks);
  const int64_t rank = required_integer("RANK", 0, world_size - 1);
  if (world_size == 1) return single();
  const int64_t port = required_integer("MASTER_PORT", 1, 65535);
  const auto address = environment("MASTER_ADDR");
  if (!address || address->empty()) {
    throw std::invalid_argument("MASTER_ADDR must be the host of the store, got no value");
  }
  // As torch.distributed's env:// rendezvous reads it.
  const bool agent_serves = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
  const bool one_host = environment("LOCAL_WORLD_SIZE").value_or("") == std::to_string(world_size);
  return std::make_unique<GlooMesh>(
      Rendezvous{.address = *address,
                 .port = static_cast<uint16_t>(port),
                 .rank = rank,
                 .world_size = world_size,
                 .serve_store = !agent_serves && rank == 0,
                 .loopback = one_host || is_loopback(*address),
                 .prefix = "ghostshard/" + environment("TORCHELASTIC_RESTART_COUNT").value_or("0"),
                 .timeout = timeout});
}

}  // namespace ghostshard::fsdp
