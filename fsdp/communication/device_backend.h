// The c10d backend of a device. The linked source decides: NCCL for CUDA devices (nccl_backend.cpp), or an error that
// names the missing backend (no_backend.cpp).
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ghostshard::fsdp {

// Makes the device the current one of this thread, and has LibTorch use operations whose results repeat. For a
// program's beginning. The device must have an index. std::invalid_argument if this build or this machine does not have
// it.
void take_device(at::Device device);

// The driver's name of a device that is not the CPU.
std::string drivers_name(at::Device device);

struct BackendEndpoint {
  c10::intrusive_ptr<c10d::Store> store;  // its keys belong to this communicator
  int64_t rank = 0;
  int64_t size = 1;
  std::chrono::milliseconds timeout{};
  bool high_priority = false;  // of its stream: other work waits for these collectives
};

c10::intrusive_ptr<c10d::Backend> make_device_backend(const BackendEndpoint& endpoint, at::Device device);

}  // namespace ghostshard::fsdp
