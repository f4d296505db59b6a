// Checks of a communicator's arguments. They throw std::invalid_argument naming call, argument, rule and value.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace ghostshard::fsdp {

inline void check_tensor(const at::Tensor& tensor, const char* call, const char* argument,
                         at::Device device = at::kCPU) {
  const auto fail = [&](const std::string& found) {
    throw std::invalid_argument(std::string(call) + ": " + argument +
                                " must be a contiguous float32, float64 or int64 " +
                                (device.is_cpu() ? "CPU tensor" : "tensor on " + device.str()) + ", got " + found);
  };
  if (!tensor.defined()) fail("an undefined tensor");
  if (tensor.device() != device) fail("one on " + tensor.device().str());
  if (!tensor.is_contiguous()) fail("one that is not contiguous");
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kLong) {
    fail(c10::toString(type));
  }
}

inline void check_pair(const at::Tensor& out, int64_t out_factor, const at::Tensor& in, const char* call,
                       at::Device device = at::kCPU) {
  check_tensor(out, call, "out", device);
  check_tensor(in, call, "in", device);
  if (out.scalar_type() != in.scalar_type() || out.numel() != out_factor * in.numel()) {
    throw std::invalid_argument(std::string(call) + ": out must hold " + std::to_string(out_factor) + " × " +
                                std::to_string(in.numel()) + " elements of in's type, got " +
                                std::to_string(out.numel()));
  }
}

inline void check_slices(const at::Tensor& tensor, int64_t size, const char* call) {
  if (tensor.numel() % size != 0) {
    throw std::invalid_argument(std::string(call) + ": the number of elements must be a multiple of " +
                                std::to_string(size) + " ranks, got " + std::to_string(tensor.numel()));
  }
}

inline void check_root(int64_t root, int64_t size) {
  if (!(root >= 0 && root < size)) {
    throw std::invalid_argument("broadcast: root must be a rank below " + std::to_string(size) + ", got " +
                                std::to_string(root));
  }
}

// Copies raw bytes: a buffer that is refilled with the values it held before must not look modified to autograd.
inline void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (to.data_ptr() == from.data_ptr()) return;
  if (to.device().is_cpu()) {
    std::memmove(to.data_ptr(), from.data_ptr(), from.nbytes());
  } else {
    to.variable_data().copy_(from);
  }
}

}  // namespace ghostshard::fsdp
