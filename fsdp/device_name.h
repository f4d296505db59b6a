// What a device calls itself, to stand beside what was measured on it.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace ghostshard::fsdp {

// Of the CPU the processor's name, of a CUDA device the driver's ("NVIDIA H100 80GB HBM3"). An index is given.
std::string device_name(at::Device device);

}  // namespace ghostshard::fsdp
