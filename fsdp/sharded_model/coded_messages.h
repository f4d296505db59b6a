// The messages of one group whose weights travel in codes (fsdp/gather_code.h): what a rank sends, and how all ranks'
// messages become the group's buffer. Of a rank's elements a message holds, one after the other,
//
//   scales   float32, of the coded parameters' stretches
//   values   in the compute dtype, of the other parameters' elements
//   codes    a byte for each element of the coded parameters
//
// and bytes without meaning up to the longest of the ranks' messages, which all have one length.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "fsdp/gather_code.h"
#include "fsdp/parameters.h"

namespace ghostshard::fsdp {

class CodedMessages {
 public:
  CodedMessages(const FlatGroup& group, const GatherCode& code, at::ScalarType compute_dtype);

  int64_t bytes() const { return bytes_; }  // of one rank's message, a multiple of 16
  // shard: [shard_size] of `rank`, float32 or bfloat16; message: uint8 [bytes()].
  void encode(int64_t rank, const at::Tensor& shard, const at::Tensor& message) const;
  // messages: uint8 [ranks · bytes()]; flat: the compute dtype, [flat_size]. Elements of no parameter stay as they are.
  void decode(const at::Tensor& messages, const at::Tensor& flat) const;

 private:
  // An owned range of one parameter, and where its parts stand in its owner's message.
  struct Piece {
    int64_t shard_offset, count;  // elements
    bool coded;
    int64_t scales_at = 0, scales = 0;  // byte, and how many
    int64_t values_at = 0;              // byte: of codes, or of values in the compute dtype
  };
  std::vector<Piece> pieces_of(const FlatGroup& group, int64_t rank);

  const GatherCode& code_;
  at::ScalarType dtype_;
  int64_t shard_size_;
  int64_t bytes_ = 0;
  std::vector<std::vector<Piece>> pieces_;  // by rank
};

}  // namespace ghostshard::fsdp
