// In the place of NCCL if the build has none: every device but the CPU is refused.
#include <stdexcept>
#include <string>

#include "fsdp/communication/device_backend.h"

namespace ghostshard::fsdp {
namespace {

[[noreturn]] void refuse(at::Device device) {
  throw std::invalid_argument("device " + device.str() +
                              ": this build has no CUDA; configure with the preset cuda, or use the device cpu");
}

}  // namespace

void take_device(at::Device device) {
  if (!device.is_cpu()) refuse(device);
}

std::string drivers_name(at::Device device) { return device.str(); }

c10::intrusive_ptr<c10d::Backend> make_device_backend(const BackendEndpoint& /*endpoint*/, at::Device device) {
  refuse(device);
}

}  // namespace ghostshard::fsdp
