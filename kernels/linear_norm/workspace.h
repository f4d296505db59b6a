// Intermediate values of the norms of row pairs on a device. A workspace gives its memory back to LibTorch's allocator
// as soon as the launches are queued; the allocator hands that memory out again on the same stream only.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/device/tensors.h"
#include "kernels/linear_norm/device.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// The workspace of the norms of rows a and g.
class RowsWorkspace {
 public:
  RowsWorkspace(const DeviceRowPair& rows, const at::Tensor& like, const Segments& segments);
  at::Tensor numbers(at::IntArrayRef shape) const { return at::empty(shape, like_.options().dtype(at::kDouble)); }
  const device::UnitRowsWork& work() const { return work_; }
  device::Stream stream() const { return stream_; }

 private:
  at::Tensor like_, offsets_, row_norms_, unit_sums_, wanted_;
  device::Stream stream_;
  device::UnitRowsWork work_{};
};

// Tiles of one kind, with room for `sums` sums for each tile.
struct DeviceTiles {
  DeviceTiles(const std::vector<int64_t>& before, int64_t sums, const at::Tensor& like);
  at::Tensor first, partials;
  device::UnitTiles tiles;
};

}  // namespace ghostshard::kernels
