#include "kernels/host/float32_products.h"

#include <ATen/Context.h>

#include <type_traits>

namespace ghostshard::kernels {
namespace {

// PyTorch 2.9 names backends, operations and precisions by strings, later ones by enumerations: whatever its functions
// take.
template <typename Precision, typename Backend, typename Operation>
Precision current(Precision (at::Context::*get)(Backend, Operation) const) {
  if constexpr (std::is_enum_v<Backend>) {
    return (at::globalContext().*get)(Backend::MKLDNN, Operation::MATMUL);
  } else {
    return (at::globalContext().*get)("mkldnn", "matmul");
  }
}

template <typename Backend, typename Operation, typename Precision>
void change(void (at::Context::*set)(Backend, Operation, Precision), const std::remove_cvref_t<Precision>& to) {
  if constexpr (std::is_enum_v<Backend>) {
    (at::globalContext().*set)(Backend::MKLDNN, Operation::MATMUL, to);
  } else {
    (at::globalContext().*set)("mkldnn", "matmul", to);
  }
}

using Precision = decltype(current(&at::Context::float32Precision));

template <typename Value>
bool is_float32(const Value& precision) {
  if constexpr (std::is_enum_v<Value>) {
    return precision == Value::IEEE || precision == Value::NONE;
  } else {
    return precision == "ieee" || precision == "none";
  }
}

template <typename Value>
Value float32() {
  if constexpr (std::is_enum_v<Value>) {
    return Value::IEEE;
  } else {
    return "ieee";
  }
}

void put_back(void* former) {
  const std::unique_ptr<Precision> owned(static_cast<Precision*>(former));
  change(&at::Context::setFloat32Precision, *owned);
}

}  // namespace

Float32Products::Float32Products() : former_(nullptr, put_back) {
  const Precision now = current(&at::Context::float32Precision);
  if (is_float32(now)) return;
  former_.reset(new Precision(now));
  change(&at::Context::setFloat32Precision, float32<Precision>());
}

}  // namespace ghostshard::kernels
