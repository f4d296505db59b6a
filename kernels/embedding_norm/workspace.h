// Checked arguments and intermediate values of table lookups on a device. A workspace gives its memory back to
// LibTorch's allocator as soon as the launches are queued; the allocator hands that memory out again on the same stream
// only.
#pragma once

#include <ATen/ATen.h>

#include "kernels/embedding_norm/device.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// A table lookup whose shapes fit; throws std::invalid_argument if they do not. Does not wait to see whether ids are in
// range.
struct CheckedLookup {
  CheckedLookup(const char* op, const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                int64_t table_rows);
  at::Tensor offsets;
  device::Lookup lookup{};
};

// The workspace of sorting a lookup's rows.
struct SortWorkspace {
  explicit SortWorkspace(const at::Tensor& ids);
  at::Tensor values, scratch;
  device::LookupOrder order{};
};

// The workspace of a lookup's norms.
struct LookupNormsWorkspace {
  LookupNormsWorkspace(const at::Tensor& e, const at::Tensor& ids);
  at::Tensor numbers, lengths;
  device::LookupNorms norms{};
};

}  // namespace ghostshard::kernels
