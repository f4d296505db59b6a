#include "tests/support/staged_mesh.h"

#include <c10/core/AutogradState.h>

#include "fsdp/communication/checks.h"

namespace ghostshard::tests {
namespace {

using fsdp::Communicator;
using fsdp::PendingCollective;

// Copies back when it is waited for. Own slices that the call leaves alone were copied to the host too.
class Staged final : public PendingCollective {
 public:
  Staged(at::Tensor out, at::Tensor on_host, std::unique_ptr<PendingCollective> pending)
      : out_(std::move(out)), on_host_(std::move(on_host)), pending_(std::move(pending)) {}
  void wait() override {
    pending_->wait();
    fsdp::copy_bytes(out_, on_host_);
  }

 private:
  at::Tensor out_, on_host_;
  std::unique_ptr<PendingCollective> pending_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& below, at::Device device) : below_(below), device_(device) {}

  int64_t rank() const override { return below_.rank(); }
  int64_t size() const override { return below_.size(); }
  int64_t bytes_sent() const override { return below_.bytes_sent(); }

  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) override {
    fsdp::check_pair(out, size(), in, "all_gather", device_);
    return staged(out, [&](const at::Tensor& on_host) { return below_.all_gather(on_host, in.cpu()); });
  }
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) override {
    fsdp::check_pair(out, 1, in, "all_to_all", device_);
    return staged(out, [&](const at::Tensor& on_host) { return below_.all_to_all(on_host, in.cpu()); });
  }
  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) override {
    fsdp::check_pair(out, 1, in, "exchange", device_);
    return staged(out, [&](const at::Tensor& on_host) { return below_.exchange(on_host, in.cpu()); });
  }
  void broadcast(at::Tensor tensor, int64_t root) override {
    in_place(tensor, "broadcast", [&](const at::Tensor& on_host) { below_.broadcast(on_host, root); });
  }
  void all_reduce_sum(at::Tensor tensor) override {
    in_place(tensor, "all_reduce_sum", [&](const at::Tensor& on_host) { below_.all_reduce_sum(on_host); });
  }
  void all_reduce_max(at::Tensor tensor) override {
    in_place(tensor, "all_reduce_max", [&](const at::Tensor& on_host) { below_.all_reduce_max(on_host); });
  }
  void barrier() override { below_.barrier(); }

 private:
  template <typename Call>
  static std::unique_ptr<PendingCollective> staged(const at::Tensor& out, const Call& call) {
    at::Tensor on_host = out.cpu();
    auto pending = call(on_host);
    return std::make_unique<Staged>(out, std::move(on_host), std::move(pending));
  }
  template <typename Call>
  void in_place(const at::Tensor& tensor, const char* name, const Call& call) const {
    fsdp::check_tensor(tensor, name, "tensor", device_);
    const at::Tensor on_host = tensor.cpu();
    call(on_host);
    fsdp::copy_bytes(tensor, on_host);
  }

  Communicator& below_;
  at::Device device_;
};

}  // namespace

StagedMesh::StagedMesh(std::unique_ptr<fsdp::Mesh> below, at::Device device)
    : CommunicatorMesh(below->rank(), below->shape(), device), below_(std::move(below)) {
  const auto over = [&](Communicator& channel) { return std::make_unique<StagedCommunicator>(channel, device); };
  gather_ = over(below_->gather());
  reduce_ = over(below_->reduce());
  replicate_ = over(below_->replicate());
  model_ = over(below_->model());
}

std::unique_ptr<fsdp::Mesh> staged_for_this_thread(std::unique_ptr<fsdp::Mesh> below, at::Device device) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  return std::make_unique<StagedMesh>(std::move(below), device);
}

}  // namespace ghostshard::tests
