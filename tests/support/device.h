// Where the models of a test are, chosen by what its program is linked with: on the CPU, on the emulated device
// (tests/emulation/device), on a GPU. Slow twins, expected values and comparisons stay on the CPU.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "fsdp/mesh.h"

namespace ghostshard::tests {

at::Device test_device();

// Values that a test made, where the model can use them; itself on the CPU.
inline at::Tensor there(const at::Tensor& x) { return x.to(test_device()); }

// This rank's mesh, with models there: itself on the CPU.
std::unique_ptr<fsdp::Mesh> moved_there(std::unique_ptr<fsdp::Mesh> mesh);

inline std::unique_ptr<fsdp::Mesh> lone_mesh() { return fsdp::Mesh::single(test_device()); }

}  // namespace ghostshard::tests
