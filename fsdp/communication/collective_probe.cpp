#include "fsdp/communication/collective_probe.h"

#include <stdexcept>

namespace ghostshard::fsdp {

void probe_collectives(Communicator& communicator, at::Device device, const std::string& name) {
  const int64_t rank = communicator.rank(), size = communicator.size();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    const auto values = [&](int64_t first, int64_t count) { return at::arange(first, first + count, type).to(device); };
    const auto expect = [&](const char* call, const at::Tensor& found, const at::Tensor& expected) {
      if (!at::equal(found, expected)) {
        throw std::runtime_error(std::string(call) + " on communicator '" + name + "', rank " + std::to_string(rank) +
                                 " of " + std::to_string(size) + ": the start-up test got wrong values (" +
                                 c10::toString(type) + "); is this torch release one the build knows?");
      }
    };
    at::Tensor out = at::zeros({3 * size}, at::dtype(type).device(device));
    communicator.all_gather(out, values(3 * rank, 3))->wait();
    expect("all_gather", out, values(0, 3 * size));
    communicator.all_to_all(out, values(0, 3 * size) + 100 * rank)->wait();
    for (int64_t r = 0; r < size; ++r) {
      expect("all_to_all", out.narrow(0, 3 * r, 3), values(3 * rank + 100 * r, 3));
    }
    at::Tensor small = values(rank, 3);
    communicator.broadcast(small, size - 1);
    expect("broadcast", small, values(size - 1, 3));
    small = values(rank, 3);
    communicator.all_reduce_sum(small);
    expect("all_reduce_sum", small, values(0, 3) * size + size * (size - 1) / 2);
    small = values(rank, 3);
    communicator.all_reduce_max(small);
    expect("all_reduce_max", small, values(size - 1, 3));
  }
  communicator.barrier();
}

}  // namespace ghostshard::fsdp
