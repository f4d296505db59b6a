// The operands of a tile's product: their place in global memory, and the layout of one step's part of an operand in
// shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/copy_async.cuh"
#include "kernels/device/tiles.h"
#include "kernels/device/vector.h"

namespace ghostshard::kernels::device {

// The operand X(m,k), for m below `extent`; entries beyond are zero.
template <typename ElementType, bool kContiguous>
struct OperandView {
  using Element = ElementType;
  static constexpr bool kDepthIsContiguous = kContiguous;
  const Element* first;
  int64_t stride;  // between rows of the matrix
  int64_t extent;
};
// X(m,·) is row m of a matrix; the product sums over columns.
template <typename Element>
using RowsView = OperandView<Element, true>;
// X(m,·) is column m; the product sums over rows.
template <typename Element>
using ColumnsView = OperandView<Element, false>;

// kRows rows of X by kDepth, in lines that are contiguous in global memory: rows of X, or steps of the depth.
//
// Pieces of 16 bytes change places within their line, by line / kSwizzle, so that the pieces a warp reads at a time lie
// in different banks; 8 pieces fill all banks. A warp reads the same piece of lines that are kSwizzle apart, or of
// neighbouring lines that are so short that kSwizzle of them fill the banks.
template <typename View, int kDepth, int kSwizzle, int kRows = kTile>
struct Panel {
  using Element = typename View::Element;
  static constexpr bool kDepthIsContiguous = View::kDepthIsContiguous;
  static constexpr int kLines = kDepthIsContiguous ? kRows : kDepth;
  static constexpr int kLine = kDepthIsContiguous ? kDepth : kRows;  // elements
  static constexpr int kPiece = kWidest / static_cast<int>(sizeof(Element));
  static constexpr int kPlaces = kLine / kPiece < 8 ? kLine / kPiece : 8;

  static __device__ int at(int line, int element) {
    const int piece = (element / kPiece) ^ (line / kSwizzle % kPlaces);
    return line * kLine + piece * kPiece + element % kPiece;
  }

  // Starts to copy the depth from `begin` on; beyond the ends of view and depth come zeros. Called by all kThreads
  // threads of a block; the panel is complete after a wait and a barrier. The widest copies need every line to begin at
  // a multiple of 16 bytes. Other lines take narrower copies; if even these do not fit, single elements of 16 bits are
  // moved by plain loads and stores, because no asynchronous copy can move them.
  template <int kThreads>
  static __device__ void fill(Element* panel, const View& view, int64_t begin, int64_t depth) {
    constexpr int kWord = sizeof(Element) < 4 ? 4 : static_cast<int>(sizeof(Element));
    if (lines_are_aligned<kWidest>(view.first, view.stride)) {
      fill_widest<kThreads>(panel, view, begin, depth);
    } else if (lines_are_aligned<kWord>(view.first, view.stride)) {
      fill_by<kThreads, kWord>(panel, view, begin, depth);
    } else {
      fill_by<kThreads, sizeof(Element)>(panel, view, begin, depth);
    }
  }

 private:
  // A thread copies the same pieces of lines that are kApart apart. Most of a product's steps take this way, and few
  // warps share a multiprocessor: what a step computes before its copies, the tensor cores wait for.
  template <int kThreads>
  static __device__ void fill_widest(Element* panel, const View& view, int64_t begin, int64_t depth) {
    constexpr int kAcross = kLine / kPiece, kApart = kThreads / kAcross;
    static_assert(kThreads % kAcross == 0 && kLines % kApart == 0);
    constexpr bool kSamePlaces = kApart % (kSwizzle * kPlaces) == 0;
    const int first_line = static_cast<int>(threadIdx.x) / kAcross;
    const int element = static_cast<int>(threadIdx.x) % kAcross * kPiece;
    const int lines = at_most(kLines, kDepthIsContiguous ? view.extent : depth - begin);
    const int line_end = at_most(kLine, kDepthIsContiguous ? depth - begin : view.extent);
    const int present = element < line_end ? at_most(kPiece, line_end - element) : 0;
    const Element* const corner = view.first + (kDepthIsContiguous ? begin : begin * view.stride);
    const Element* from = corner + first_line * view.stride + element;
    Element* const to = panel + at(first_line, element);
    GHOSTSHARD_UNROLL(sizeof(Element) < 8 ? 8 : 1)  // float64 sums leave no registers for it
    for (int line = 0; line < kLines; line += kApart) {
      const bool any = first_line + line < lines && present > 0;
      // An address that is never read must be valid nevertheless.
      copy_async<kWidest>(kSamePlaces ? to + line * kLine : panel + at(first_line + line, element), any ? from : corner,
                          any ? present * static_cast<int>(sizeof(Element)) : 0);
      from += kApart * view.stride;
    }
  }

  template <int kThreads, int kBytes>
  static __device__ void fill_by(Element* panel, const View& view, int64_t begin, int64_t depth) {
    constexpr int kEach = kBytes / static_cast<int>(sizeof(Element)), kAcross = kLine / kEach;
    static_assert(kLines * kAcross % kThreads == 0);
    const int lines = at_most(kLines, kDepthIsContiguous ? view.extent : depth - begin);
    const int line_end = at_most(kLine, kDepthIsContiguous ? depth - begin : view.extent);
    const Element* first = view.first + (kDepthIsContiguous ? begin : begin * view.stride);
    GHOSTSHARD_UNROLL(1)
    for (int i = static_cast<int>(threadIdx.x); i < kLines * kAcross; i += kThreads) {
      const int line = i / kAcross, element = i % kAcross * kEach;
      const bool any = line < lines && element < line_end;
      // An address that is never read must be valid nevertheless.
      const Element* from = any ? first + line * view.stride + element : first;
      Element* to = panel + at(line, element);
      if constexpr (kBytes >= 4) {
        const int present = any ? at_most(kEach, line_end - element) : 0;
        copy_async<kBytes>(to, from, present * static_cast<int>(sizeof(Element)));
      } else {
        *to = any ? *from : Element{};
      }
    }
  }

  static __device__ int at_most(int limit, int64_t x) { return x < limit ? static_cast<int>(x) : limit; }
};

}  // namespace ghostshard::kernels::device
