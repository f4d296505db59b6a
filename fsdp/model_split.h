// How a parameter is cut among the ranks of the model axis (tensor parallel layers, arXiv:1909.08053). Pure arithmetic.
//
// One extent is cut. It is first divided into equal *sections*, and each section is cut into as many equal pieces as
// there are ranks: a layer whose columns are queries, keys and values side by side has three sections, so that every
// rank gets the queries, keys and values of the same heads. A rank's part keeps the order of its elements.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ghostshard::fsdp {

struct ModelSplit {
  int64_t extent = -1;   // which extent is cut; -1: none, every rank holds the whole parameter
  int64_t sections = 1;  // equal sections of that extent
  bool cuts() const { return extent >= 0; }
};

// Consecutive elements of a rank's part that are consecutive in the whole parameter too.
struct ElementRun {
  int64_t first;        // within the rank's part
  int64_t whole_first;  // within the whole parameter
  int64_t count;
};

// Shape of every rank's part. Throws std::invalid_argument naming the parameter unless the extent exists and
// sections × ranks divide it.
std::vector<int64_t> part_shape(const std::string& name, const std::vector<int64_t>& whole, const ModelSplit& split,
                                int64_t ranks);
// That rank's part of a whole tensor: a view if possible, else a copy.
at::Tensor part_of(const at::Tensor& whole, const ModelSplit& split, int64_t ranks, int64_t rank);
// The whole tensor, as a copy, from parts [ranks · elements of a part] in rank order.
at::Tensor join_parts(const at::Tensor& parts, const std::vector<int64_t>& whole, const ModelSplit& split,
                      int64_t ranks);
// Where the elements [first, first + count) of a rank's part lie in the whole, in rising order.
std::vector<ElementRun> whole_runs(const std::vector<int64_t>& whole, const ModelSplit& split, int64_t ranks,
                                   int64_t rank, int64_t first, int64_t count);

}  // namespace ghostshard::fsdp
