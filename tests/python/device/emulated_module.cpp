// emulated: the device that the engine beside this module in its file runs on, as tests see it.
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/emulation/device/device.h"
#include "tests/emulation/device/memory.h"
#include "tests/python/device/staged_backend.h"

namespace ghostshard::tests {
namespace {

PYBIND11_MODULE(emulated, module) {
  module.def("host_waits", &emulation::host_waits);
  module.def("bytes_in_use", &emulation::device_bytes_in_use);
  module.def("staged_backend", [](const c10::intrusive_ptr<c10d::Backend>& below) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<StagedBackend>(below));
  });
}

}  // namespace
}  // namespace ghostshard::tests
