#include "fsdp/device_name.h"

#include <fstream>

#include "fsdp/communication/device_backend.h"

namespace ghostshard::fsdp {
namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  const std::string key = "model name";
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace

std::string device_name(at::Device device) { return device.is_cpu() ? processor_name() : drivers_name(device); }

}  // namespace ghostshard::fsdp
