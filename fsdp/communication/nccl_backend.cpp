// The one file that sees NCCL's headers. Linked in the preset cuda; no_backend.cpp is linked otherwise.
#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "fsdp/communication/device_backend.h"

namespace ghostshard::fsdp {

void take_device(at::Device device) {
  if (device.is_cpu()) return;
  if (!device.is_cuda()) {
    throw std::invalid_argument("the device must be cpu or a CUDA device, got " + device.str());
  }
  const int count = c10::cuda::device_count();
  if (count == 0) {
    throw std::invalid_argument("device " + device.str() + ": this machine has no CUDA device (or no driver for it)");
  }
  if (!(device.index() >= 0 && device.index() < count)) {
    throw std::invalid_argument("device " + device.str() + ": this machine has " + std::to_string(count) +
                                " CUDA device(s), numbered from 0");
  }
  c10::cuda::set_device(device.index());
  // A second forward and backward must bring the first one's bits (two passes, recomputed blocks), and a run with its
  // key repeats itself. cuBLAS reads its variable when it starts; a value that the user has set stays.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);  // NOLINT(concurrency-mt-unsafe): before threads
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  // Or LibTorch would fill every empty tensor, of which a step has thousands. Here none is read before it is written.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

std::string drivers_name(at::Device device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  return properties.name;
}

c10::intrusive_ptr<c10d::Backend> make_device_backend(const BackendEndpoint& endpoint, at::Device device) {
  // The collective watch reports first (fsdp/communication/collective_watch.h). c10d's own watchdog, which ends the
  // process without telling the other ranks, has a longer time-out.
  constexpr auto kBehindTheWatch = std::chrono::seconds(60);
  auto options = c10d::ProcessGroupNCCL::Options::create(endpoint.high_priority);
  options->timeout = endpoint.timeout + kBehindTheWatch;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(endpoint.store, static_cast<int>(endpoint.rank),
                                                             static_cast<int>(endpoint.size), options);
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

}  // namespace ghostshard::fsdp
