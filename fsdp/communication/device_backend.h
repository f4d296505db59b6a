// The c10d backend of a device. What is linked decides: NCCL for CUDA devices (device/nccl_backend.cpp), or a sentence
// that says there is none (device/absent.cpp). Internal to this folder.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ghostshard::fsdp {

// Makes the device the current one of this thread, and LibTorch's operations on it those whose results repeat; for a
// program's beginning. An index is given. std::invalid_argument where this build or this machine does not have it.
void take_device(at::Device device);

// What its driver calls a device that is not the CPU.
std::string drivers_name(at::Device device);

struct BackendEndpoint {
  c10::intrusive_ptr<c10d::Store> store;  // its keys belong to this communicator
  int64_t rank = 0;
  int64_t size = 1;
  std::chrono::milliseconds timeout{};
  bool high_priority = false;  // of its stream: what others wait for
};

c10::intrusive_ptr<c10d::Backend> make_device_backend(const BackendEndpoint& endpoint, at::Device device);

}  // namespace ghostshard::fsdp
