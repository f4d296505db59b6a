#include "fsdp/sharded_model/coded_messages.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ghostshard::fsdp {
namespace {

constexpr auto kScaleBytes = static_cast<int64_t>(sizeof(float));
constexpr int64_t kMessageAlignment = 16;  // bytes: of every message, and so of every rank's scales

at::Tensor part(const at::Tensor& message, int64_t at, int64_t bytes, at::ScalarType type) {
  return message.narrow(0, at, bytes).view(type);
}

}  // namespace

CodedMessages::CodedMessages(const FlatGroup& group, const GatherCode& code, at::ScalarType compute_dtype)
    : code_(code), dtype_(compute_dtype), shard_size_(group.plan().shard_size()) {
  for (int64_t rank = 0; rank < group.plan().world_size(); ++rank) pieces_.push_back(pieces_of(group, rank));
  bytes_ = (bytes_ + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

std::vector<CodedMessages::Piece> CodedMessages::pieces_of(const FlatGroup& group, int64_t rank) {
  std::vector<Piece> pieces;
  int64_t scales = 0, values = 0;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  for (const OwnedRange& range : group.plan().owned(rank)) {
    const Parameter& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
    const bool coded = code_.takes(parameter.shape());
    if (coded && range.first % code_.stretch() != 0) {
      throw std::logic_error("parameter '" + parameter.name() + "': rank " + std::to_string(rank) +
                             "'s shard must begin between two stretches of " + std::to_string(code_.stretch()) +
                             " elements, begins at element " + std::to_string(range.first));
    }
    Piece piece{.shard_offset = range.shard_offset, .count = range.count, .coded = coded};
    piece.scales = coded ? (range.count + code_.stretch() - 1) / code_.stretch() : 0;
    piece.scales_at = scales;
    scales += piece.scales * kScaleBytes;
    if (!coded) values += range.count * element;
    pieces.push_back(piece);
  }
  int64_t value_at = scales, code_at = scales + values;
  for (Piece& piece : pieces) {
    int64_t& at = piece.coded ? code_at : value_at;
    piece.values_at = at;
    at += piece.count * (piece.coded ? 1 : element);
  }
  bytes_ = std::max(bytes_, code_at);
  return pieces;
}

void CodedMessages::encode(int64_t rank, const at::Tensor& shard, const at::Tensor& message) const {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  for (const Piece& piece : pieces_[static_cast<size_t>(rank)]) {
    const at::Tensor weights = shard.narrow(0, piece.shard_offset, piece.count);
    if (piece.coded) {
      code_.encode(weights.to(at::kFloat), message.narrow(0, piece.values_at, piece.count),
                   part(message, piece.scales_at, piece.scales * kScaleBytes, at::kFloat));
    } else {
      part(message, piece.values_at, piece.count * element, dtype_).copy_(weights);
    }
  }
}

void CodedMessages::decode(const at::Tensor& messages, const at::Tensor& flat) const {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  for (size_t rank = 0; rank < pieces_.size(); ++rank) {
    const at::Tensor message = messages.narrow(0, static_cast<int64_t>(rank) * bytes_, bytes_);
    for (const Piece& piece : pieces_[rank]) {
      const at::Tensor weights =
          flat.narrow(0, static_cast<int64_t>(rank) * shard_size_ + piece.shard_offset, piece.count);
      if (piece.coded) {
        code_.decode(message.narrow(0, piece.values_at, piece.count),
                     part(message, piece.scales_at, piece.scales * kScaleBytes, at::kFloat), weights);
      } else {
        weights.copy_(part(message, piece.values_at, piece.count * element, dtype_));
      }
    }
  }
}

}  // namespace ghostshard::fsdp
