// Tokenized texts, grouped into privacy units, and batches of them as rows without padding.
//
// `ghostshard data prepare` writes the file: tokens int32 [N], offsets int64 [S+1] of the texts,
// loss_mask uint8 [N] (1 for a token that must be predicted), and, if a unit is more than a text (all texts of a user),
// unit_offsets int64 [U+1]: unit u is the texts unit_offsets[u] to unit_offsets[u+1]−1. Without it each text is a unit.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dp/recording/recorder.h"

namespace ghostshard::gpt2 {

// A microbatch as rows: a text's L tokens x_0 to x_{L−1} give L−1 rows, x_0 to x_{L−2}, and row t predicts x_{t+1}. A
// unit's texts follow each other.
struct TokenBatch {
  at::Tensor ids;             // int64 [N]
  at::Tensor positions;       // int64 [N], from 0 in each text
  dp::SegmentsPtr segments;   // the rows of each unit
  dp::SegmentsPtr documents;  // the rows of each text, which attention keeps apart; null if a unit is a text
  // The rows that have a loss, a subset of the N in order.
  at::Tensor loss_rows;  // int64 [M]; undefined if every row has one
  at::Tensor targets;    // int64 [M]
  // float32 [M]: 1/(rows with a loss in the unit), so that a unit's loss is the mean over the tokens of all its texts.
  // Every unit weighs the same, however long its texts are.
  at::Tensor loss_weights;
  dp::SegmentsPtr loss_segments;

  int64_t units() const { return segments->units(); }
  // The same batch with its tensors on the device; itself if they are there. Does not wait for the device.
  TokenBatch on(at::Device device) const;
};

class Dataset {
 public:
  // Throws std::invalid_argument naming the file: tensors missing or of the wrong type, offsets that do not fit,
  // no unit at all, a unit without texts, a token outside [0, vocab_size), a text longer than max_length rows.
  Dataset(const std::filesystem::path& path, int64_t vocab_size, int64_t max_length);

  int64_t units() const { return static_cast<int64_t>(unit_offsets_.size()) - 1; }
  int64_t texts() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  // "text", "user", or another name that the file's metadata gives its units.
  std::string unit_of_privacy() const;
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // The first text here, and its first place there, that both have; texts without a row (fewer than two tokens) do not
  // count.
  std::optional<std::pair<int64_t, int64_t>> text_in_common(const Dataset& other) const;
  int64_t loss_tokens() const;  // tokens that must be predicted, over all units
  // Rows each unit takes (the tokens of its texts but their last).
  const std::vector<int64_t>& row_counts() const { return row_counts_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  TokenBatch batch(std::span<const int64_t> units) const;

 private:
  std::string_view bytes_of(int64_t text) const;

  std::vector<int32_t> tokens_;
  std::vector<int64_t> offsets_;       // of texts, in tokens
  std::vector<int64_t> unit_offsets_;  // of units, in texts
  bool grouped_ = false;               // the file has unit_offsets
  std::vector<uint8_t> loss_mask_;
  std::vector<int64_t> row_counts_;
  std::map<std::string, std::string> metadata_;
};

// One text of given token ids, every row with a loss; for generation and tests.
TokenBatch batch_of_rows(std::span<const int64_t> ids);

}  // namespace ghostshard::gpt2
