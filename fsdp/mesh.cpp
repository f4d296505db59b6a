#include "fsdp/mesh.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "fsdp/communication/communicator_mesh.h"
#include "fsdp/communication/device_backend.h"
#include "fsdp/communication/lone_communicator.h"
#include "fsdp/communication/rank_mesh.h"

namespace ghostshard::fsdp {
namespace {

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

// The address by which peers can reach this host: the one that its packets to the store carry. Nothing is sent. Empty
// if the system cannot tell; then Gloo looks up the host's name.
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

class SingleMesh final : public CommunicatorMesh {
 public:
  explicit SingleMesh(at::Device on) : CommunicatorMesh(0, {}, on) {
    for (auto* communicator : {&gather_, &reduce_, &replicate_, &model_}) *communicator = make_lone_communicator(on);
    control_ = make_lone_communicator();
  }
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
  return make_rank_mesh(Rendezvous{.address = address,
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
  return make_rank_mesh(Rendezvous{.address = *address,
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
