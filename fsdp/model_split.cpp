// A whole tensor is viewed as [chunks, ranks, piece], with one chunk for each section of each index before the cut
// extent. Every rank's part is then [chunks, piece]: one view serves slicing, joining and counting.
#include "fsdp/model_split.h"

#include <algorithm>
#include <stdexcept>

namespace ghostshard::fsdp {
namespace {

struct Pieces {
  int64_t chunks = 1;
  int64_t piece = 1;  // elements of one rank within a chunk
};

Pieces pieces_of(const std::vector<int64_t>& whole, const ModelSplit& split, int64_t ranks) {
  Pieces pieces;
  int64_t elements = 1;
  for (const int64_t extent : whole) elements *= extent;
  for (int64_t e = 0; e < split.extent; ++e) pieces.chunks *= whole[static_cast<size_t>(e)];
  pieces.chunks *= split.sections;
  pieces.piece = elements / pieces.chunks / ranks;
  return pieces;
}

}  // namespace

std::vector<int64_t> part_shape(const std::string& name, const std::vector<int64_t>& whole, const ModelSplit& split,
                                int64_t ranks) {
  if (!split.cuts() || ranks == 1) return whole;
  const auto rule = [&](const std::string& text) { throw std::invalid_argument("parameter '" + name + "': " + text); };
  if (split.extent >= static_cast<int64_t>(whole.size())) {
    rule("the extent to cut must be below " + std::to_string(whole.size()) + ", got " + std::to_string(split.extent));
  }
  std::vector<int64_t> part = whole;
  int64_t& cut = part[static_cast<size_t>(split.extent)];
  if (!(split.sections >= 1) || cut % (split.sections * ranks) != 0) {
    rule("an extent cut over the model axis must be a multiple of " + std::to_string(split.sections) +
         " section(s) x " + std::to_string(ranks) + " ranks, got " + std::to_string(cut));
  }
  cut /= ranks;
  return part;
}

at::Tensor part_of(const at::Tensor& whole, const ModelSplit& split, int64_t ranks, int64_t rank) {
  if (!split.cuts() || ranks == 1) return whole;
  const std::vector<int64_t> shape = whole.sizes().vec();
  const Pieces pieces = pieces_of(shape, split, ranks);
  return whole.reshape({pieces.chunks, ranks, pieces.piece})
      .select(1, rank)
      .reshape(part_shape("", shape, split, ranks));
}

at::Tensor join_parts(const at::Tensor& parts, const std::vector<int64_t>& whole, const ModelSplit& split,
                      int64_t ranks) {
  const Pieces pieces = pieces_of(whole, split, ranks);
  return parts.view({ranks, pieces.chunks, pieces.piece}).transpose(0, 1).contiguous().view(whole);
}

std::vector<ElementRun> whole_runs(const std::vector<int64_t>& whole, const ModelSplit& split, int64_t ranks,
                                   int64_t rank, int64_t first, int64_t count) {
  if (!split.cuts() || ranks == 1) return {{.first = first, .whole_first = first, .count = count}};
  const int64_t piece = pieces_of(whole, split, ranks).piece;
  std::vector<ElementRun> runs;
  for (int64_t at = first; at < first + count;) {
    const int64_t chunk = at / piece, within = at % piece;
    const int64_t length = std::min(piece - within, first + count - at);
    runs.push_back({.first = at, .whole_first = (chunk * ranks + rank) * piece + within, .count = length});
    at += length;
  }
  return runs;
}

}  // namespace ghostshard::fsdp
