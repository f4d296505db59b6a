#include "tests/support/recording_mesh.h"

#include <stdexcept>
#include <utility>

#include "fsdp/communication/checks.h"
#include "fsdp/communication/complete.h"

namespace ghostshard::tests {
namespace {

using fsdp::check_pair;
using fsdp::check_root;
using fsdp::check_slices;
using fsdp::check_tensor;
using fsdp::Communicator;
using fsdp::complete;
using fsdp::copy_bytes;
using fsdp::MeshShape;
using fsdp::PendingCollective;

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::string name, int64_t rank, int64_t size, std::vector<RecordedCall>& calls)
      : name_(std::move(name)), rank_(rank), size_(size), calls_(calls) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t bytes_sent() const override { return bytes_sent_; }

  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) override {
    check_pair(out, size_, in, "all_gather");
    record("all_gather", out, (size_ - 1) * bytes(in));
    copy_bytes(slice(out), in.view(-1));
    clear_others(out);
    return complete();
  }
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_to_all");
    check_slices(in, size_, "all_to_all");
    record("all_to_all", in, (size_ - 1) * (bytes(in) / size_));
    copy_bytes(slice(out), slice(in));
    clear_others(out);
    return complete();
  }
  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "exchange");
    check_slices(in, size_, "exchange");
    record("exchange", in, (size_ - 1) * (bytes(in) / size_));
    clear_others(out);
    return complete();
  }
  void broadcast(at::Tensor tensor, int64_t root) override {
    check_tensor(tensor, "broadcast", "tensor");
    check_root(root, size_);
    record("broadcast", tensor, rank_ == root ? (size_ - 1) * bytes(tensor) : 0);
  }
  void all_reduce_sum(at::Tensor tensor) override { all_reduce("all_reduce_sum", tensor); }
  void all_reduce_max(at::Tensor tensor) override { all_reduce("all_reduce_max", tensor); }
  void barrier() override { record("barrier", at::empty({size_}, at::kLong), (size_ - 1) * 8); }

 private:
  static int64_t bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

  // Every other rank gets its slice of the tensor, then the sum of this rank's slice; the last slice is padded.
  void all_reduce(const char* call, const at::Tensor& tensor) {
    check_tensor(tensor, call, "tensor");
    const int64_t part = (tensor.numel() + size_ - 1) / size_;
    record(call, tensor, 2 * (size_ - 1) * part * tensor.element_size());
  }

  void record(const char* call, const at::Tensor& tensor, int64_t sent) {
    bytes_sent_ += sent;
    calls_.push_back({.communicator = name_,
                      .call = call,
                      .type = c10::toString(tensor.scalar_type()),
                      .elements = tensor.numel(),
                      .bytes_sent = sent});
  }

  at::Tensor slice(const at::Tensor& tensor) const {
    const int64_t n = tensor.numel() / size_;
    return tensor.view(-1).narrow(0, rank_ * n, n);
  }

  // Bytes, for the reason given at copy_bytes.
  void clear_others(const at::Tensor& tensor) const {
    const size_t piece = tensor.nbytes() / static_cast<size_t>(size_), own = piece * static_cast<size_t>(rank_);
    auto* data = static_cast<char*>(tensor.data_ptr());
    if (tensor.numel() == 0) return;
    std::memset(data, 0, own);
    std::memset(data + own + piece, 0, tensor.nbytes() - own - piece);
  }

  std::string name_;
  int64_t rank_, size_;
  int64_t bytes_sent_ = 0;
  std::vector<RecordedCall>& calls_;
};

int64_t checked(int64_t rank, const MeshShape& shape) {
  if (!(shape.replicate >= 1 && shape.shard >= 1 && shape.model >= 1 && rank >= 0 && rank < shape.ranks())) {
    throw std::invalid_argument("a rank must be from 0 to below the places of its mesh " + shape.text() + ", got " +
                                std::to_string(rank));
  }
  return rank;
}

}  // namespace

RecordingMesh::RecordingMesh(const MeshShape& shape, int64_t rank) : CommunicatorMesh(checked(rank, shape), shape) {
  const auto make = [&](const char* name, int64_t place, int64_t size) {
    return std::make_unique<RecordingCommunicator>(name, place, size, calls_);
  };
  gather_ = make("gather", shard_rank(), shape.shard);
  reduce_ = make("reduce", shard_rank(), shape.shard);
  replicate_ = make("replicate", replica(), shape.replicate);
  model_ = make("model", model_rank(), shape.model);
  control_ = make("control", Mesh::rank(), world_size());
}

int64_t RecordingMesh::bytes_sent(const std::string& communicator) const {
  int64_t sum = 0;
  for (const RecordedCall& call : calls_) sum += call.communicator == communicator ? call.bytes_sent : 0;
  return sum;
}

}  // namespace ghostshard::tests
