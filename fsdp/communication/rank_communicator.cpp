#include "fsdp/communication/rank_communicator.h"

#include <ATen/core/grad_mode.h>
#include <utility>

#include "fsdp/communication/checks.h"
#include "fsdp/communication/collective_probe.h"
#include "fsdp/communication/complete.h"

namespace ghostshard::fsdp {

RankCommunicator::RankCommunicator(std::string name, int64_t rank, int64_t size, at::Device device)
    : name_(std::move(name)), rank_(rank), size_(size), device_(device) {}

void RankCommunicator::probe() {
  probe_collectives(*this, device_, name_);
  bytes_sent_ = 0;
}

std::string RankCommunicator::describe(const char* call) const {
  return std::string(call) + " on communicator '" + name_ + "', rank " + std::to_string(rank_) + " of " +
         std::to_string(size_);
}

std::unique_ptr<PendingCollective> RankCommunicator::all_gather(at::Tensor out, at::Tensor in) {
  check_pair(out, size_, in, "all_gather", device_);
  if (in.numel() == 0) return complete();
  return start_gather("all_gather", out.view(-1), in.view(-1));
}

std::unique_ptr<PendingCollective> RankCommunicator::all_to_all(at::Tensor out, at::Tensor in) {
  check_pair(out, 1, in, "all_to_all", device_);
  check_slices(in, size_, "all_to_all");
  const int64_t n = in.numel() / size_;
  copy_bytes(out.view(-1).narrow(0, rank_ * n, n), in.view(-1).narrow(0, rank_ * n, n));
  return exchange(std::move(out), std::move(in));
}

std::unique_ptr<PendingCollective> RankCommunicator::exchange(at::Tensor out, at::Tensor in) {
  check_pair(out, 1, in, "exchange", device_);
  check_slices(in, size_, "exchange");
  if (in.numel() == 0) return complete();
  return start_exchange("exchange", out.view(-1), in.view(-1));
}

void RankCommunicator::broadcast(at::Tensor tensor, int64_t root) {
  check_tensor(tensor, "broadcast", "tensor", device_);
  check_root(root, size_);
  if (tensor.numel() == 0) return;
  start_broadcast(tensor.view(-1), root)->wait();
}

void RankCommunicator::all_reduce_sum(at::Tensor tensor) {
  all_reduce("all_reduce_sum", tensor, [](at::Tensor& sum, const at::Tensor& slice) { sum.add_(slice); });
}

void RankCommunicator::all_reduce_max(at::Tensor tensor) {
  all_reduce("all_reduce_max", tensor,
             [](at::Tensor& most, const at::Tensor& slice) { at::maximum_out(most, most, slice); });
}

void RankCommunicator::all_reduce(const char* call, const at::Tensor& tensor, Combine combine) {
  check_tensor(tensor, call, "tensor", device_);
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const int64_t n = tensor.numel(), slice = (n + size_ - 1) / size_;
  const bool even = slice * size_ == n;
  const at::Tensor padded = even ? tensor.view(-1) : at::zeros({slice * size_}, tensor.options());
  const at::Tensor received = at::empty_like(padded);
  if (!even) padded.narrow(0, 0, n).copy_(tensor.view(-1));
  start_exchange(call, received, padded)->wait();
  const auto of = [&](int64_t rank) { return (rank == rank_ ? padded : received).narrow(0, rank * slice, slice); };
  at::Tensor own = of(0);  // combined in place: slice 0 of `padded` or `received` is needed for nothing else
  for (int64_t rank = 1; rank < size_; ++rank) combine(own, of(rank));
  start_gather(call, padded, own)->wait();
  if (!even) tensor.view(-1).copy_(padded.narrow(0, 0, n));
}

}  // namespace ghostshard::fsdp
