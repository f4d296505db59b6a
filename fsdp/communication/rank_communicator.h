// The common part of the communicators of several ranks. A backend moves bytes by three calls (gather, exchange,
// broadcast) and has a barrier; everything else is made of them here.
//
// Sums and maxima: slices are exchanged, each rank combines one slice from rank 0 on, and the slices are gathered. So
// every rank gets the same bits, from run to run too.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

class RankCommunicator : public Communicator {
 public:
  int64_t rank() const final { return rank_; }
  int64_t size() const final { return size_; }
  int64_t bytes_sent() const final { return bytes_sent_; }
  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) final;
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) final;
  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) final;
  void broadcast(at::Tensor tensor, int64_t root) final;
  void all_reduce_sum(at::Tensor tensor) final;
  void all_reduce_max(at::Tensor tensor) final;

 protected:
  // name: for messages. A subclass's constructor ends with probe().
  RankCommunicator(std::string name, int64_t rank, int64_t size, at::Device device);
  // Tries each collective once (fsdp/communication/collective_probe.h). A collective; not counted in bytes_sent().
  void probe();

  // call: for messages. Arguments are checked, flat and not empty.
  virtual std::unique_ptr<PendingCollective> start_gather(const char* call, at::Tensor out, at::Tensor in) = 0;
  // Leaves this rank's own slice of out as it is.
  virtual std::unique_ptr<PendingCollective> start_exchange(const char* call, at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<PendingCollective> start_broadcast(at::Tensor tensor, int64_t root) = 0;

  // "CALL on communicator 'NAME', rank R of W"
  std::string describe(const char* call) const;
  at::Device device() const { return device_; }
  void count_sent(int64_t bytes) { bytes_sent_ += bytes; }

 private:
  using Combine = void (*)(at::Tensor& own, const at::Tensor& slice);
  void all_reduce(const char* call, const at::Tensor& tensor, Combine combine);

  std::string name_;
  int64_t rank_, size_;
  at::Device device_;
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace ghostshard::fsdp
