#include "tests/emulation/device/device.h"
#include "tests/support/device.h"

namespace ghostshard::tests {

at::Device test_device() { return emulation::device(); }

}  // namespace ghostshard::tests
