// The 16-bit formats as bits, and the conversion of every format to float.
#pragma once

#include <cstdint>

#include "kernels/device/host_device.h"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

GHOSTSHARD_HOST_DEVICE float to_float(float x) { return x; }
GHOSTSHARD_HOST_DEVICE double to_float(double x) { return x; }
GHOSTSHARD_HOST_DEVICE float to_float(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
// A multiplication moves the exponent: it is exact, also for numbers below the smallest normal one.
GHOSTSHARD_HOST_DEVICE float to_float(Float16 x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const bool finite = (x.bits & 0x7c00u) != 0x7c00u;
  const uint32_t scaled = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) * 0x1p112f);
  return __builtin_bit_cast(float, (finite ? scaled : magnitude | 0x7f800000u) | sign);
}

// The distance between rows of a device::Matrix, in elements. For wider elements it is the number of columns, so the
// compiler needs no register for it.
template <typename Element>
GHOSTSHARD_HOST_DEVICE int64_t row_stride(int64_t columns, int64_t stride) {
  return sizeof(Element) == 2 ? stride : columns;
}

// Calls visit(a value of the element's type): a format known at run time becomes one known at compile time.
template <typename Visit>
void visit_element(ElementType element, const Visit& visit) {
  switch (element) {
    case ElementType::kFloat32:
      return visit(float{});
    case ElementType::kFloat64:
      return visit(double{});
    case ElementType::kBFloat16:
      return visit(BFloat16{});
    case ElementType::kFloat16:
      return visit(Float16{});
  }
}

}  // namespace ghostshard::kernels::device
