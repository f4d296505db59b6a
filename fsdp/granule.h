// What stays together of a parameter: elements that no shard boundary separates. Optimizers that look at more than one
// element at a time need it (arXiv:2602.22437 calls such shards ragged). Pure arithmetic.
//
// A parameter is cut into granules from its first element on, in the order of its elements; the last one may be
// shorter. On a mesh with a model axis the granules are those of a rank's part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ghostshard::fsdp {

class Granule {
 public:
  static Granule elements(int64_t count);
  // Rows: runs of the last extent. A vector is one row.
  static Granule rows(int64_t count = 1);
  // side x side tiles of a matrix, as many as stand side by side in whole rows: a boundary lies between two tiles.
  static Granule tiles(int64_t side);
  // One of `count` equal pieces of the first extent: a head of [heads · head width, inputs], or, with three times as
  // many pieces, of fused queries, keys and values. Pieces of another extent interleave in memory: whole() then.
  static Granule heads(int64_t count);
  static Granule whole();

  // Elements of one granule of a tensor of this shape, at least 1 and at most the tensor's. Throws
  // std::invalid_argument naming the parameter, the rule and the value: tiles need two extents, heads divide the first.
  int64_t of(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  enum class Kind { kElements, kRows, kTiles, kHeads, kWhole };
  Granule(Kind kind, int64_t count) : kind_(kind), count_(count) {}
  Kind kind_;
  int64_t count_;
};

}  // namespace ghostshard::fsdp
