#include "fsdp/mesh.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp/communication/device_backend.h"
#include "fsdp/communication/device_communicator.h"
#include "fsdp/communication/failure_channel.h"
#include "fsdp/communication/gloo_communicator.h"

namespace ghostshard::fsdp {
namespace {

// A rank that gives up must not wait long for a store that does not answer.
constexpr auto kAnnouncementTimeout = std::chrono::seconds(5);

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
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

// The address that peers can reach this host by: the one its packets to the store carry. Nothing is sent. Empty where
// the system cannot tell; then Gloo goes by the host's name.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const int socket = ::socket(to->ai_family, to->ai_socktype, to->ai_protocol);
    if (socket < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST] = "";
    const bool known =
        ::connect(socket, to->ai_addr, to->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(socket);
    if (known) return text;
  }
  return "";
}

MeshShape shape_for(int64_t world_size, const std::optional<MeshShape>& wanted) {
  if (!wanted) return {.shard = world_size};
  if (!(wanted->replicate >= 1 && wanted->shard >= 1 && wanted->model >= 1) || wanted->ranks() != world_size) {
    throw std::invalid_argument("the mesh replicate x shard x model must have as many places as there are ranks (" +
                                std::to_string(world_size) + "), got " + wanted->text());
  }
  return *wanted;
}

class SingleMesh final : public Mesh {
 public:
  explicit SingleMesh(at::Device on) : Mesh(0, {}, on), communicator_(make_lone_communicator(on)) {}
  Communicator& gather() override { return *communicator_; }
  Communicator& reduce() override { return *communicator_; }
  Communicator& replicate() override { return *communicator_; }
  Communicator& model() override { return *communicator_; }
  Communicator& control() override { return *control_; }
  void announce_failure(const std::string&) noexcept override {}
  void watch_failures(std::function<void(const std::string&)>) override {}

 private:
  std::unique_ptr<Communicator> communicator_, control_ = make_lone_communicator();
};

struct Rendezvous {
  std::string address;
  uint16_t port = 0;
  int64_t rank = 0;
  MeshShape shape;
  bool serve_store = false;
  bool loopback = false;
  std::string local_address;  // by which this host reaches the store; empty where unknown
  std::string prefix;         // keeps the keys of a restarted run apart from those of the run before it
  std::chrono::milliseconds timeout{};
  at::Device device = at::kCPU;
};

// Gloo for the host's tensors, the device's backend for those of a device.
class RankMesh final : public Mesh {
 public:
  explicit RankMesh(const Rendezvous& where)
      : Mesh(where.rank, where.shape, where.device), watch_(std::make_shared<CollectiveWatch>(where.timeout)) {
    const std::string self = "rank " + std::to_string(rank()) + " of " + std::to_string(world_size());
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
    // line: which of the parallel lines of an axis this rank stands on.
    const auto communicator = [&](const std::string& name, int64_t line, int64_t place_on_line, int64_t size,
                                  at::Device on) {
      if (size == 1) return make_lone_communicator(on);
      const std::string keys = where.prefix + "/" + name + "/" + std::to_string(line);
      auto own_keys = c10::make_intrusive<c10d::PrefixStore>(keys, store_);
      try {
        if (!on.is_cpu()) {
          return make_device_communicator({.backend = make_device_backend({.store = std::move(own_keys),
                                                                           .rank = place_on_line,
                                                                           .size = size,
                                                                           .timeout = where.timeout,
                                                                           .high_priority = name == "gather"},
                                                                          on),
                                           .name = name,
                                           .device = on,
                                           .watch = watch_});
        }
        return make_gloo_communicator({.store = std::move(own_keys),
                                       .name = name,
                                       .rank = place_on_line,
                                       .size = size,
                                       .loopback = where.loopback,
                                       .local_address = where.local_address,
                                       .timeout = where.timeout});
      } catch (const std::exception& error) {
        throw std::runtime_error(self + " could not connect communicator '" + name + "' with every other rank within " +
                                 seconds + " s (store at " + place + "): " + reason_of(error));
      }
    };
    const MeshShape& s = shape();
    const int64_t shard_line = replica() * s.model + model_rank();
    // Host memory first: whoever is missing is missed by a rank that can still say so.
    control_ = communicator("control", 0, rank(), world_size(), at::kCPU);
    gather_ = communicator("gather", shard_line, shard_rank(), s.shard, device());
    reduce_ = communicator("reduce", shard_line, shard_rank(), s.shard, device());
    replicate_ = communicator("replicate", shard_rank() * s.model + model_rank(), replica(), s.replicate, device());
    model_ = communicator("model", data_rank(), model_rank(), s.model, device());
  }

  Communicator& gather() override { return *gather_; }
  Communicator& reduce() override { return *reduce_; }
  Communicator& replicate() override { return *replicate_; }
  Communicator& model() override { return *model_; }
  Communicator& control() override { return *control_; }
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
  static c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& where, bool serve) {
    c10d::TCPStoreOptions options;
    options.port = where.port;
    options.isServer = serve;
    options.multiTenant = true;
    options.waitWorkers = false;  // connecting the communicators waits for every rank anyway
    options.timeout = where.timeout;
    return c10::make_intrusive<c10d::TCPStore>(where.address, options);
  }

  // Destroyed from the bottom up: the communicators, the watching thread, then the store that they use.
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<FailureChannel> failure_;
  std::shared_ptr<CollectiveWatch> watch_;
  std::unique_ptr<Communicator> gather_, reduce_, replicate_, model_, control_;
};

}  // namespace

std::string MeshShape::text() const {
  return std::to_string(replicate) + "x" + std::to_string(shard) + "x" + std::to_string(model);
}

MeshShape MeshShape::parse(const std::string& text) {
  constexpr int64_t kMost = 1 << 20;
  MeshShape shape;
  const char *at = text.data(), *end = text.data() + text.size();
  int64_t* const extents[] = {&shape.replicate, &shape.shard, &shape.model};
  bool good = true;
  for (int axis = 0; axis < 3 && good; ++axis) {
    if (axis > 0) {
      good = at != end && *at == 'x';
      if (good) ++at;
    }
    const auto [stop, error] = std::from_chars(at, end, *extents[axis]);
    good = good && error == std::errc() && *extents[axis] >= 1 && *extents[axis] <= kMost;
    at = stop;
  }
  if (!good || at != end) {
    throw std::invalid_argument(
        "a mesh must be REPLICATExSHARDxMODEL, three whole numbers of at least 1 such as 1x4x2, got '" + text + "'");
  }
  return shape;
}

std::unique_ptr<Mesh> Mesh::single(at::Device device) { return std::make_unique<SingleMesh>(device); }

std::unique_ptr<Mesh> Mesh::connect(const std::string& address, int port, int64_t rank, int64_t world_size,
                                    bool serve_store, std::chrono::seconds timeout,
                                    const std::optional<MeshShape>& shape) {
  const auto require = [](bool holds, const std::string& rule, int64_t found) {
    if (!holds) throw std::invalid_argument(rule + ", got " + std::to_string(found));
  };
  require(world_size >= 1, "world_size must be at least 1", world_size);
  require(rank >= 0 && rank < world_size, "rank must be from 0 to " + std::to_string(world_size - 1), rank);
  require(port >= 1 && port <= 65535, "port must be from 1 to 65535", port);
  require(timeout.count() > 0, "timeout must be positive", timeout.count());
  const MeshShape checked = shape_for(world_size, shape);
  if (world_size == 1) return single();
  return std::make_unique<RankMesh>(Rendezvous{.address = address,
                                               .port = static_cast<uint16_t>(port),
                                               .rank = rank,
                                               .shape = checked,
                                               .serve_store = serve_store,
                                               .loopback = is_loopback(address),
                                               .local_address = address_towards(address, port),
                                               .prefix = "ghostshard/0",
                                               .timeout = timeout});
}

std::unique_ptr<Mesh> Mesh::from_environment(std::chrono::seconds timeout, const std::optional<MeshShape>& shape,
                                             at::Device device) {
  if (!device.is_cpu() && !device.has_index()) {
    constexpr int64_t kMostDevices = 127;
    const int64_t own = environment("LOCAL_RANK") ? required_integer("LOCAL_RANK", 0, kMostDevices) : 0;
    device.set_index(static_cast<c10::DeviceIndex>(own));
  }
  take_device(device);
  if (!environment("RANK") && !environment("WORLD_SIZE")) {
    shape_for(1, shape);
    return single(device);
  }
  constexpr int64_t kMostRanks = 1 << 20;
  const int64_t world_size = required_integer("WORLD_SIZE", 1, kMostRanks);
  const int64_t rank = required_integer("RANK", 0, world_size - 1);
  const MeshShape checked = shape_for(world_size, shape);
  if (world_size == 1) return single(device);
  const int64_t port = required_integer("MASTER_PORT", 1, 65535);
  const auto address = environment("MASTER_ADDR");
  if (!address || address->empty()) {
    throw std::invalid_argument("MASTER_ADDR must be the host of the store, got no value");
  }
  // As torch.distributed's env:// rendezvous reads it.
  const bool agent_serves = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
  const bool one_host = environment("LOCAL_WORLD_SIZE").value_or("") == std::to_string(world_size);
  return std::make_unique<RankMesh>(
      Rendezvous{.address = *address,
                 .port = static_cast<uint16_t>(port),
                 .rank = rank,
                 .shape = checked,
                 .serve_store = !agent_serves && rank == 0,
                 .loopback = one_host || is_loopback(*address),
                 .local_address = address_towards(*address, static_cast<int>(port)),
                 .prefix = "ghostshard/" + environment("TORCHELASTIC_RESTART_COUNT").value_or("0"),
                 .timeout = timeout,
                 .device = device});
}

}  // namespace ghostshard::fsdp
