// One tile of a product X·Yᵀ by one block: entry (m,n) = sum over k of X(m,k)·Y(n,k). Gram matrices, gradients of one
// unit and clipped sums are all this product of two views of rows (panel.cuh).
//
// Two ways have one interface: plain arithmetic, and tensor cores with float32 accumulators for 16-bit rows. Each
// thread keeps some entries in registers; row() and column() say which ones.
#pragma once

#include <type_traits>

#include "kernels/device/plain_tile.cuh"
#include "kernels/device/tensor_core_tile.cuh"

namespace ghostshard::kernels::device {

// The way for rows of this type, summed in their own arithmetic (float32 for 16 bits).
template <typename Element>
using TileFor =
    std::conditional_t<std::is_floating_point_v<Element>, PlainTile<Element, Element>, TensorCoreTile<Element>>;
static_assert(TileFor<float>::kSide == side_of(ElementType::kFloat32));
static_assert(TileFor<BFloat16>::kSide == side_of(ElementType::kBFloat16));

}  // namespace ghostshard::kernels::device
