#include "tests/support/device.h"

namespace ghostshard::tests {

at::Device test_device() { return at::kCPU; }

}  // namespace ghostshard::tests
