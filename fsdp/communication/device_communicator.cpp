#include "fsdp/communication/device_communicator.h"

#include <stdexcept>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>
#include <vector>

#include "fsdp/communication/complete.h"
#include "fsdp/communication/rank_communicator.h"
#include "fsdp/communication/reason.h"

namespace ghostshard::fsdp {
namespace {

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

class DeviceCommunicator final : public RankCommunicator {
 public:
  explicit DeviceCommunicator(DeviceEndpoint endpoint)
      : RankCommunicator(std::move(endpoint.name), endpoint.backend->getRank(), endpoint.backend->getSize(),
                         endpoint.device),
        backend_(std::move(endpoint.backend)),
        watch_(std::move(endpoint.watch)) {
    probe();
  }

  // The one call that waits on the host.
  void barrier() override {
    const at::Tensor mine = at::zeros({1}, at::dtype(at::kLong).device(device()));
    const at::Tensor all = at::empty({size()}, mine.options());
    all_gather(all, mine)->wait();
    all.cpu();
  }

 private:
  std::unique_ptr<PendingCollective> start_gather(const char* call, at::Tensor out, at::Tensor in) override {
    count_sent((size() - 1) * static_cast<int64_t>(in.nbytes()));
    return queued(call, {out, in}, [&] { return backend_->_allgather_base(out, in); });
  }

  std::unique_ptr<PendingCollective> start_exchange(const char* call, at::Tensor out, at::Tensor in) override {
    if (size() == 1) return complete();
    const int64_t n = in.numel() / size();
    count_sent((size() - 1) * n * in.element_size());
    // One group of sends and receives: none waits for another.
    return queued(call, {out, in}, [&] {
      backend_->startCoalescing();
      for (int64_t step = 1; step < size(); ++step) {
        const int64_t from = (rank() + size() - step) % size(), to = (rank() + step) % size();
        std::vector<at::Tensor> received{out.narrow(0, from * n, n)}, sent{in.narrow(0, to * n, n)};
        backend_->recv(received, static_cast<int>(from), 0);
        backend_->send(sent, static_cast<int>(to), 0);
      }
      return backend_->endCoalescing();
    });
  }

  std::unique_ptr<PendingCollective> start_broadcast(at::Tensor tensor, int64_t root) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    if (rank() == root) count_sent((size() - 1) * static_cast<int64_t>(tensor.nbytes()));
    return queued("broadcast", tensors, [&] { return backend_->broadcast(tensors, options); });
  }

  template <typename Call>
  std::unique_ptr<PendingCollective> queued(const char* call, std::vector<at::Tensor> tensors, const Call& start) {
    const std::string what = describe(call);
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = start();
    } catch (const std::exception& error) {
      throw std::runtime_error(what + ": " + reason_of(error));
    }
    if (work == nullptr) return complete();
    if (watch_ != nullptr) {
      watch_->add(what, [work] {
        if (!work->isCompleted()) return false;
        if (const auto failure = work->exception()) std::rethrow_exception(failure);
        return true;
      });
    }
    return std::make_unique<QueuedWork>(what, work, std::move(tensors));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<CollectiveWatch> watch_;
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
