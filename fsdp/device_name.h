// The name of a device, to stand beside figures that were measured on it.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace ghostshard::fsdp {

// The processor's name for the CPU, the driver's name for a CUDA device ("NVIDIA H100 80GB HBM3"), which must have an
// index.
std::string device_name(at::Device device);

}  // namespace ghostshard::fsdp
