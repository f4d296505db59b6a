#include "fsdp/communication/lone_communicator.h"

#include "fsdp/communication/checks.h"
#include "fsdp/communication/complete.h"

namespace ghostshard::fsdp {
namespace {

class LoneCommunicator final : public Communicator {
 public:
  explicit LoneCommunicator(at::Device device) : device_(device) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  int64_t bytes_sent() const override { return 0; }
  std::unique_ptr<PendingCollective> all_gather(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_gather", device_);
    copy_bytes(out, in);
    return complete();
  }
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "all_to_all", device_);
    copy_bytes(out, in);
    return complete();
  }
  std::unique_ptr<PendingCollective> exchange(at::Tensor out, at::Tensor in) override {
    check_pair(out, 1, in, "exchange", device_);
    return complete();
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

std::unique_ptr<Communicator> make_lone_communicator(at::Device device) {
  return std::make_unique<LoneCommunicator>(device);
}

}  // namespace ghostshard::fsdp
