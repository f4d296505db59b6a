// Every collective is made of sends and receives between views of the caller's tensors, and not of Gloo's own: around
// those c10d flattens into temporaries (one or two more copies of every byte), queues for a pool thread, writes to a
// flight recorder that is shared by all groups of the process and not safe among threads (seen to crash), and renames
// the calls from release to release. Sends and receives go straight between socket and tensor, all at once, and sums
// in rank order come out bit-equal on every rank. This is the one file that sees Gloo's headers; only shared_ptrs to
// Gloo types cross into the library.
#include "fsdp/communication/gloo_communicator.h"

#include <atomic>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "fsdp/communication/checks.h"
#include "fsdp/communication/collective_probe.h"

namespace ghostshard::fsdp {

std::string reason_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
}

namespace {

class Complete final : public PendingCollective {
 public:
  void wait() override {}
};

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

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::string name, c10::intrusive_ptr<c10d::Backend> group)
      : name_(std::move(name)), rank_(group->getRank()), size_(group->getSize()), group_(std::move(group)) {
    self_test(*this, at::kCPU, name_);
    bytes_sent_ = 0;
  }

  static c10::intrusive_ptr<c10d::Backend> connect(const GlooEndpoint& endpoint) {
    auto options = c10d::ProcessGroupGloo::Options::create(endpoint.timeout);
    options->threads = 1;  // idle: for Gloo's own collectives
    options->devices.push_back(device(endpoint));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(endpoint.store, static_cast<int>(endpoint.rank),
                                                       static_cast<int>(endpoint.size), options);
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t bytes_sent() const override { return bytes_sent_; }

  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) override {
    check_pair(out, size_, in, "all_gather");
    const at::Tensor flat_out = out.view(-1), flat_in = in.view(-1);
    const int64_t n = flat_in.numel();
    copy_bytes(flat_out.narrow(0, rank_ * n, n), flat_in);
    return pairwise("all_gather", flat_out, n, [&](int64_t) { return flat_in; });
  }

  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_to_all");
    check_slices(in, size_, "all_to_all");
    const int64_t n = in.numel() / size_;
    copy_bytes(out.view(-1).narrow(0, rank_ * n, n), in.view(-1).narrow(0, rank_ * n, n));
    return exchange(std::move(out), std::move(in));
  }

  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "exchange");
    check_slices(in, size_, "exchange");
    const at::Tensor flat_in = in.view(-1);
    const int64_t n = flat_in.numel() / size_;
    return pairwise("exchange", out.view(-1), n, [&](int64_t peer) { return flat_in.narrow(0, peer * n, n); });
  }

  void broadcast(at::Tensor tensor, int64_t root) override {
    check_tensor(tensor, "broadcast", "tensor");
    check_root(root, size_);
    Transfers transfers(*this, "broadcast");
    for (int64_t peer = 0; peer < size_ && tensor.numel() > 0; ++peer) {
      if (rank_ == root && peer != root) transfers.send(tensor.view(-1), peer);
      if (rank_ != root && peer == root) transfers.receive(tensor.view(-1), peer);
    }
    std::move(transfers).pending()->wait();
  }

  void all_reduce_sum(at::Tensor tensor) override {
    all_reduce("all_reduce_sum", tensor, [](at::Tensor& sum, const at::Tensor& slice) { sum.add_(slice); });
  }
  void all_reduce_max(at::Tensor tensor) override {
    all_reduce("all_reduce_max", tensor,
               [](at::Tensor& most, const at::Tensor& slice) { at::maximum_out(most, most, slice); });
  }
  void barrier() override {
    at::Tensor out = at::zeros({size_}, at::kLong);
    pairwise("barrier", out, 1, [&](int64_t) { return out.narrow(0, rank_, 1); })->wait();
  }

 private:
  static std::shared_ptr<gloo::transport::Device> device(const GlooEndpoint& endpoint) {
    if (endpoint.loopback) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here sets variables
    const char* interface_name = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface_name != nullptr) return c10d::ProcessGroupGloo::createDeviceForInterface(interface_name);
    if (!endpoint.local_address.empty()) {
      return c10d::ProcessGroupGloo::createDeviceForHostname(endpoint.local_address);
    }
    return c10d::ProcessGroupGloo::createDefaultDevice();
  }

  std::string describe(const char* call) const {
    return std::string(call) + " on communicator '" + name_ + "', rank " + std::to_string(rank_) + " of " +
           std::to_string(size_);
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
      owner_.bytes_sent_ += static_cast<int64_t>(from.nbytes());
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

  // Receives slice p of out from, and sends outgoing(p) to, every peer p.
  template <typename Outgoing>
  std::unique_ptr<PendingCollective> pairwise(const char* call, const at::Tensor& out, int64_t n,
                                              const Outgoing& outgoing) {
    Transfers transfers(*this, call);
    if (n == 0) return std::make_unique<Complete>();
    // Receives first: what arrives early then needs no second look. Every rank starts with another peer.
    for (int64_t step = 1; step < size_; ++step) {
      const int64_t peer = (rank_ + size_ - step) % size_;
      transfers.receive(out.narrow(0, peer * n, n), peer);
    }
    for (int64_t step = 1; step < size_; ++step) {
      const int64_t peer = (rank_ + step) % size_;
      transfers.send(outgoing(peer), peer);
    }
    return std::move(transfers).pending();
  }

  // Each rank combines one slice, in rank order, and the slices are gathered.
  template <typename Combine>
  void all_reduce(const char* call, const at::Tensor& tensor, const Combine& combine) {
    check_tensor(tensor, call, "tensor");
    const at::NoGradGuard no_grad;
    const int64_t n = tensor.numel(), slice = (n + size_ - 1) / size_;
    const bool even = slice * size_ == n;
    at::Tensor padded = even ? tensor.view(-1) : at::zeros({slice * size_}, tensor.scalar_type());
    at::Tensor received = at::empty_like(padded);
    if (!even) padded.narrow(0, 0, n).copy_(tensor.view(-1));
    const auto of = [&](const at::Tensor& whole, int64_t rank) { return whole.narrow(0, rank * slice, slice); };
    copy_bytes(of(received, rank_), of(padded, rank_));
    pairwise(call, received, slice, [&](int64_t peer) { return of(padded, peer); })->wait();
    at::Tensor own = of(padded, rank_);
    copy_bytes(own, of(received, 0));
    for (int64_t r = 1; r < size_; ++r) combine(own, of(received, r));
    pairwise(call, padded, slice, [&](int64_t) { return own; })->wait();
    if (!even) tensor.view(-1).copy_(padded.narrow(0, 0, n));
  }

  std::string name_;
  int64_t rank_, size_;
  uint32_t next_tag_ = 0;
  std::atomic<int64_t> bytes_sent_{0};
  c10::intrusive_ptr<c10d::Backend> group_;
};

class LoneCommunicator final : public Communicator {
 public:
  explicit LoneCommunicator(at::Device device) : device_(device) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  int64_t bytes_sent() const override { return 0; }
  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_gather", device_);
    copy_bytes(out, in);
    return std::make_unique<Complete>();
  }
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_to_all", device_);
    copy_bytes(out, in);
    return std::make_unique<Complete>();
  }
  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "exchange", device_);
    return std::make_unique<Complete>();
  }
  void broadcast(at::Tensor tensor, int64_t root) override {
    check_tensor(tensor, "broadcast", "tensor", device_);
    if (root != 0) throw std::invalid_argument("broadcast: root must be rank 0, got " + std::to_string(root));
  }
  void all_reduce_sum(at::Tensor tensor) override { check_tensor(tensor, "all_reduce_sum", "tensor", device_); }
  void all_reduce_max(at::Tensor tensor) override { check_tensor(tensor, "all_reduce_max", "tensor", device_); }
  void barrier() override {}

 private:
  at::Device device_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const GlooEndpoint& endpoint) {
  return std::make_unique<GlooCommunicator>(endpoint.name, GlooCommunicator::connect(endpoint));
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

std::unique_ptr<Communicator> make_lone_communicator(at::Device device) {
  return std::make_unique<LoneCommunicator>(device);
}

}  // namespace ghostshard::fsdp
