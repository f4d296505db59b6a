// Where the operations on a device have their intermediate values. They are given back to LibTorch's allocator when the
// launches are queued, which hands them out again on the same stream only. Internal.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/device/tensors.h"
#include "kernels/embedding_norm/device.h"
#include "kernels/linear_norm/device.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// For the norms of rows a and g.
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

// Tiles of one kind, and room for `sums` sums of each.
struct DeviceTiles {
  DeviceTiles(const std::vector<int64_t>& before, int64_t sums, const at::Tensor& like);
  at::Tensor first, partials;
  device::UnitTiles tiles;
};

// A table lookup whose shapes fit; std::invalid_argument otherwise. Nobody waits to see whether its ids are in range.
struct CheckedLookup {
  CheckedLookup(const char* op, const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                int64_t table_rows);
  at::Tensor offsets;
  device::Lookup lookup{};
};

// For the sort of a lookup's rows.
struct SortWorkspace {
  explicit SortWorkspace(const at::Tensor& ids);
  at::Tensor values, scratch;
  device::LookupOrder order{};
};

// For the norms of a lookup's rows.
struct LookupNormsWorkspace {
  LookupNormsWorkspace(const at::Tensor& e, const at::Tensor& ids);
  at::Tensor numbers, lengths;
  device::LookupNorms norms{};
};

}  // namespace ghostshard::kernels
