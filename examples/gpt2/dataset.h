// Tokenized texts, one privacy unit each, and batches of them as rows without padding.
//
// The file is what `python -m ghostshard.data prepare` writes: tokens int32 [N], offsets int64 [U+1],
// loss_mask uint8 [N] (1 where a token is to be predicted).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dp/recorder.h"

namespace ghostshard::gpt2 {

// A microbatch as rows: unit u's tokens x_0 … x_{L−1} give L−1 rows (x_0 … x_{L−2}), row t predicting x_{t+1}.
struct TokenBatch {
  at::Tensor ids;        // int64 [N]
  at::Tensor positions;  // int64 [N]
  dp::SegmentsPtr segments;
  // The rows that have a loss, a subset of the N in order.
  at::Tensor loss_rows;  // int64 [M]; undefined where every row has one
  at::Tensor targets;    // int64 [M]
  at::Tensor
      loss_weights;  // float32 [M]: 1/(rows with loss in the unit), so that a unit's loss is a mean over its tokens
  dp::SegmentsPtr loss_segments;

  int64_t units() const { return segments->units(); }
};

class Dataset {
 public:
  // Throws std::invalid_argument naming the file: tensors missing or of the wrong type, offsets that do not fit,
  // no unit at all, a token outside [0, vocab_size), a unit longer than max_length rows.
  Dataset(const std::filesystem::path& path, int64_t vocab_size, int64_t max_length);

  int64_t units() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t loss_tokens() const;  // tokens to be predicted, over all units
  // Rows each unit takes (its tokens but the last).
  const std::vector<int64_t>& row_counts() const { return row_counts_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  TokenBatch batch(std::span<const int64_t> units) const;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> offsets_;
  std::vector<uint8_t> loss_mask_;
  std::vector<int64_t> row_counts_;
  std::map<std::string, std::string> metadata_;
};

// One text of given token ids, every row with a loss; for generation and tests.
TokenBatch batch_of_rows(std::span<const int64_t> ids);

}  // namespace ghostshard::gpt2
