// Every collective is made of sends and receives between views of the caller's tensors. Gloo's own collectives are not
// used: around them c10d flattens into temporaries (one or two more copies of every byte), queues for a pool thread,
// writes to a flight recorder that all groups of the process share and that is not safe among threads (seen to crash),
// and renames the calls from release to release. Sends and receives go straight between socket and tensor, all at once,
// and sums in rank order come out bit-equal on every rank. This is the one file that sees Gloo's headers; only
// shared_ptrs to Gloo types cross into the library.
#include "fsdp/communication/gloo_communicator.h"

#include <cstdlib>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "fsdp/communication/checks.h"
#include "fsdp/communication/rank_communicator.h"
#include "fsdp/communication/reason.h"

namespace ghostshard::fsdp {

namespace {

class PairwiseTransfer final : public PendingCollective {
 public:
  PairwiseTransfer(std::string what, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : what_(std::move(what)), works_(std::move(works)) {}

  void wait() override {
    auto works = std::exchange(works_, {});
    for (const auto& work : works) {
      try {
        work->wait();
      } catch (const std::exception& error) {
        throw std::runtime_error(what_ + ": " + reason_of(error));
      }
    }
  }

 private:
  std::string what_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

std::shared_ptr<gloo::transport::Device> device_of(const GlooEndpoint& endpoint) {
  if (endpoint.loopback) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here sets variables
  const char* interface_name = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface_name != nullptr) return c10d::ProcessGroupGloo::createDeviceForInterface(interface_name);
  if (!endpoint.local_address.empty()) return c10d::ProcessGroupGloo::createDeviceForHostname(endpoint.local_address);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

c10::intrusive_ptr<c10d::Backend> connect(const GlooEndpoint& endpoint) {
  auto options = c10d::ProcessGroupGloo::Options::create(endpoint.timeout);
  options->threads = 1;  // idle: for Gloo's own collectives
  options->devices.push_back(device_of(endpoint));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(endpoint.store, static_cast<int>(endpoint.rank),
                                                     static_cast<int>(endpoint.size), options);
}

class GlooCommunicator final : public RankCommunicator {
 public:
  GlooCommunicator(std::string name, c10::intrusive_ptr<c10d::Backend> group)
      : RankCommunicator(std::move(name), group->getRank(), group->getSize(), at::kCPU), group_(std::move(group)) {
    probe();
  }

  void barrier() override {
    const at::Tensor out = at::zeros({size()}, at::kLong);
    pairwise("barrier", out, 1, [&](int64_t) { return out.narrow(0, rank(), 1); })->wait();
  }

 private:
  std::unique_ptr<PendingCollective> start_gather(const char* call, at::Tensor out, at::Tensor in) override {
    const int64_t n = in.numel();
    copy_bytes(out.narrow(0, rank() * n, n), in);
    return pairwise(call, out, n, [&](int64_t) { return in; });
  }

  std::unique_ptr<PendingCollective> start_exchange(const char* call, at::Tensor out, at::Tensor in) override {
    const int64_t n = in.numel() / size();
    return pairwise(call, out, n, [&](int64_t peer) { return in.narrow(0, peer * n, n); });
  }

  std::unique_ptr<PendingCollective> start_broadcast(at::Tensor tensor, int64_t root) override {
    Transfers transfers(*this, "broadcast");
    if (rank() != root) transfers.receive(tensor, root);
    for (int64_t peer = 0; rank() == root && peer < size(); ++peer) {
      if (peer != root) transfers.send(tensor, peer);
    }
    return std::move(transfers).pending();
  }

  // The sends and receives of one call; its tag keeps them apart from those of other calls in flight.
  class Transfers {
   public:
    Transfers(GlooCommunicator& owner, const char* call)
        : owner_(owner), what_(owner.describe(call)), tag_(static_cast<int>(owner.next_tag_++ & 0x3fffffff)) {}

    void receive(at::Tensor to, int64_t peer) {
      std::vector<at::Tensor> tensors{std::move(to)};
      start([&] { return owner_.group_->recv(tensors, static_cast<int>(peer), tag_); });
    }
    void send(at::Tensor from, int64_t peer) {
      owner_.count_sent(static_cast<int64_t>(from.nbytes()));
      std::vector<at::Tensor> tensors{std::move(from)};
      start([&] { return owner_.group_->send(tensors, static_cast<int>(peer), tag_); });
    }
    std::unique_ptr<PendingCollective> pending() && {
      return std::make_unique<PairwiseTransfer>(std::move(what_), std::move(works_));
    }

   private:
    template <typename Call>
    void start(const Call& call) {
      try {
        works_.push_back(call());
      } catch (const std::exception& error) {
        throw std::runtime_error(what_ + ": " + reason_of(error));
      }
    }
    GlooCommunicator& owner_;
    std::string what_;
    int tag_;
    std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  };

  // Receives slice p of out from every peer p, and sends outgoing(p) to it. n >= 1: elements of a slice.
  template <typename Outgoing>
  std::unique_ptr<PendingCollective> pairwise(const char* call, const at::Tensor& out, int64_t n,
                                              const Outgoing& outgoing) {
    Transfers transfers(*this, call);
    // Receives first, so that data which arrive early find their place at once. Every rank starts with another peer.
    for (int64_t step = 1; step < size(); ++step) {
      const int64_t peer = (rank() + size() - step) % size();
      transfers.receive(out.narrow(0, peer * n, n), peer);
    }
    for (int64_t step = 1; step < size(); ++step) {
      const int64_t peer = (rank() + step) % size();
      transfers.send(outgoing(peer), peer);
    }
    return std::move(transfers).pending();
  }

  uint32_t next_tag_ = 0;
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const GlooEndpoint& endpoint) {
  return std::make_unique<GlooCommunicator>(endpoint.name, connect(endpoint));
}

std::unique_ptr<Communicator> adopt_gloo_communicator(const std::string& name, const std::string& group) {
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = c10d::resolve_process_group(group)->getBackend(c10::DeviceType::CPU);
  } catch (const std::exception& error) {
    throw std::invalid_argument("communicator '" + name + "' needs a process group with Gloo for the CPU, got '" +
                                group + "': " + reason_of(error));
  }
  if (backend->getBackendName() != "gloo") {
    throw std::invalid_argument("communicator '" + name + "' needs a process group with Gloo for the CPU, got '" +
                                group + "', which has " + backend->getBackendName());
  }
  return std::make_unique<GlooCommunicator>(name, std::move(backend));
}

}  // namespace ghostshard::fsdp
