#include "fsdp/communication/device_communicator.h"

#include <stdexcept>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>
#include <vector>

#include "fsdp/communication/checks.h"
#include "fsdp/communication/collective_probe.h"
#include "fsdp/communication/gloo_communicator.h"

namespace ghostshard::fsdp {
namespace {

class Complete final : public PendingCollective {
 public:
  void wait() override {}
};

class QueuedWork final : public PendingCollective {
 public:
  QueuedWork(std::string what, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : what_(std::move(what)), work_(std::move(work)), tensors_(std::move(tensors)) {}

  void wait() override {
    if (work_ == nullptr) return;
    const auto work = std::exchange(work_, nullptr);
    try {
      work->wait();
    } catch (const std::exception& error) {
      throw std::runtime_error(what_ + ": " + reason_of(error));
    }
    tensors_.clear();
  }

 private:
  std::string what_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

class DeviceCommunicator final : public Communicator {
 public:
  explicit DeviceCommunicator(DeviceEndpoint endpoint)
      : backend_(std::move(endpoint.backend)),
        name_(std::move(endpoint.name)),
        device_(endpoint.device),
        watch_(std::move(endpoint.watch)),
        rank_(backend_->getRank()),
        size_(backend_->getSize()) {
    self_test(*this, device_, name_);
    bytes_sent_ = 0;
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t bytes_sent() const override { return bytes_sent_; }

  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) override {
    check_pair(out, size_, in, "all_gather", device_);
    if (in.numel() == 0) return std::make_unique<Complete>();
    at::Tensor flat_out = out.view(-1), flat_in = in.view(-1);
    bytes_sent_ += (size_ - 1) * static_cast<int64_t>(in.nbytes());
    return queued("all_gather", {flat_out, flat_in}, [&] { return backend_->_allgather_base(flat_out, flat_in); });
  }

  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_to_all", device_);
    check_slices(in, size_, "all_to_all");
    const int64_t n = in.numel() / size_;
    copy_bytes(out.view(-1).narrow(0, rank_ * n, n), in.view(-1).narrow(0, rank_ * n, n));
    return exchange(std::move(out), std::move(in));
  }

  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "exchange", device_);
    check_slices(in, size_, "exchange");
    const at::Tensor flat_out = out.view(-1), flat_in = in.view(-1);
    const int64_t n = in.numel() / size_;
    if (n == 0 || size_ == 1) return std::make_unique<Complete>();
    bytes_sent_ += (size_ - 1) * n * in.element_size();
    // One group of sends and receives: none waits for another.
    return queued("exchange", {flat_out, flat_in}, [&] {
      backend_->startCoalescing();
      for (int64_t step = 1; step < size_; ++step) {
        const int64_t from = (rank_ + size_ - step) % size_, to = (rank_ + step) % size_;
        std::vector<at::Tensor> received{flat_out.narrow(0, from * n, n)}, sent{flat_in.narrow(0, to * n, n)};
        backend_->recv(received, static_cast<int>(from), 0);
        backend_->send(sent, static_cast<int>(to), 0);
      }
      return backend_->endCoalescing();
    });
  }

  void broadcast(at::Tensor tensor, int64_t root) override {
    check_tensor(tensor, "broadcast", "tensor", device_);
    check_root(root, size_);
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> tensors{tensor.view(-1)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    if (rank_ == root) bytes_sent_ += (size_ - 1) * static_cast<int64_t>(tensor.nbytes());
    queued("broadcast", tensors, [&] { return backend_->broadcast(tensors, options); })->wait();
  }

  void all_reduce_sum(at::Tensor tensor) override {
    all_reduce("all_reduce_sum", tensor, [](at::Tensor& sum, const at::Tensor& slice) { sum.add_(slice); });
  }
  void all_reduce_max(at::Tensor tensor) override {
    all_reduce("all_reduce_max", tensor,
               [](at::Tensor& most, const at::Tensor& slice) { at::maximum_out(most, most, slice); });
  }
  // The one call that waits on the host.
  void barrier() override {
    const at::Tensor mine = at::zeros({1}, at::dtype(at::kLong).device(device_));
    const at::Tensor all = at::empty({size_}, mine.options());
    all_gather(all, mine)->wait();
    all.cpu();
  }

 private:
  template <typename Call>
  std::unique_ptr<PendingCollective> queued(const char* call, std::vector<at::Tensor> tensors, const Call& start) {
    const std::string what = std::string(call) + " on communicator '" + name_ + "', rank " + std::to_string(rank_) +
                             " of " + std::to_string(size_);
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = start();
    } catch (const std::exception& error) {
      throw std::runtime_error(what + ": " + reason_of(error));
    }
    if (work == nullptr) return std::make_unique<Complete>();
    if (watch_ != nullptr) {
      watch_->add(what, [work] {
        if (!work->isCompleted()) return false;
        if (const auto failure = work->exception()) std::rethrow_exception(failure);
        return true;
      });
    }
    return std::make_unique<QueuedWork>(what, work, std::move(tensors));
  }

  template <typename Combine>
  void all_reduce(const char* call, const at::Tensor& tensor, const Combine& combine) {
    check_tensor(tensor, call, "tensor", device_);
    if (tensor.numel() == 0) return;
    const at::NoGradGuard no_grad;
    const int64_t n = tensor.numel(), slice = (n + size_ - 1) / size_;
    const bool even = slice * size_ == n;
    const at::Tensor padded = even ? tensor.view(-1) : at::zeros({slice * size_}, tensor.options());
    const at::Tensor received = at::empty_like(padded);
    if (!even) padded.narrow(0, 0, n).copy_(tensor.view(-1));
    exchange(received, padded)->wait();
    const auto of = [&](int64_t rank) { return (rank == rank_ ? padded : received).narrow(0, rank * slice, slice); };
    at::Tensor own = of(0).clone();
    for (int64_t rank = 1; rank < size_; ++rank) combine(own, of(rank));
    all_gather(padded, own)->wait();
    if (!even) tensor.view(-1).copy_(padded.narrow(0, 0, n));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  at::Device device_;
  std::shared_ptr<CollectiveWatch> watch_;
  int64_t rank_, size_;
  int64_t bytes_sent_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(DeviceEndpoint endpoint) {
  return std::make_unique<DeviceCommunicator>(std::move(endpoint));
}

std::unique_ptr<Communicator> adopt_device_communicator(const std::string& name, const std::string& group,
                                                        at::Device device) {
  const auto refuse = [&](const std::string& reason) {
    throw std::invalid_argument("communicator '" + name + "' needs a process group with a backend for " + device.str() +
                                " that queues sends and receives together, as NCCL does, got '" + group + "'" + reason);
  };
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = c10d::resolve_process_group(group)->getBackend(device.type());
  } catch (const std::exception& error) {
    refuse(": " + reason_of(error));
  }
  if (!backend->supportsCoalescing()) refuse(", which has " + backend->getBackendName());
  return make_device_communicator({.backend = std::move(backend), .name = name, .device = device, .watch = nullptr});
}

}  // namespace ghostshard::fsdp
