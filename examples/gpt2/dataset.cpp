#include "examples/gpt2/dataset.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <unordered_map>

#include "dp/planning/host_memory_left.h"
#include "fsdp/regular_file.h"
#include "fsdp/safetensors.h"

namespace ghostshard::gpt2 {
namespace {

template <class T>
std::vector<T> column(const fsdp::SafetensorsFile& file, const std::string& path, const char* name,
                      at::ScalarType type) {
  if (!file.contains(name)) throw std::invalid_argument(path + ": tensor '" + name + "' is missing");
  const at::Tensor tensor = file.tensor(name);
  if (tensor.scalar_type() != type || tensor.dim() != 1) {
    throw std::invalid_argument(path + ": tensor '" + name + "' must be " + std::string(c10::toString(type)) +
                                " with one extent, is " + c10::toString(tensor.scalar_type()) + " with " +
                                std::to_string(tensor.dim()));
  }
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  if (!values.empty()) std::memcpy(values.data(), tensor.const_data_ptr(), values.size() * sizeof(T));
  return values;
}

at::Tensor long_tensor(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong));
}

// Every rank holds the texts whole. The system would end a program without a word for what it cannot hold.
void require_memory(const std::filesystem::path& path, uint64_t bytes) {
  const double left = dp::host_memory_left();
  if (static_cast<double>(bytes) <= left) return;
  const auto mebibytes = [](double count) { return std::to_string(static_cast<int64_t>(count / (1 << 20))) + " MiB"; };
  throw std::invalid_argument(path.string() + " must fit in this machine's free memory (" + mebibytes(left) +
                              "), it has " + mebibytes(static_cast<double>(bytes)));
}

// A safetensors file begins with the length of its header, and the header with "{". Of any other file nothing may be
// said: its first bytes are a private text's.
void require_prepared(const std::filesystem::path& path) {
  fsdp::RegularFile file(path);
  std::array<char, 9> begin{};
  (void)file.read(begin);
  uint64_t header = 0;
  std::memcpy(&header, begin.data(), sizeof header);
  if (header < file.bytes() && begin[8] == '{') return require_memory(path, file.bytes());
  const std::string suffix = path.extension().string(), name = path.string();
  const std::map<std::string, std::string> formats = {
      {".jsonl", "jsonl"}, {".csv", "csv"}, {".txt", "text"}, {".parquet", "parquet"}};
  const auto found = formats.find(suffix);
  throw std::invalid_argument(name +
                              " is not a file of tokens: prepare it first, with `ghostshard data prepare --format " +
                              (found == formats.end() ? "FORMAT" : found->second) + " --input " + name +
                              " --tokenizer MODEL_FOLDER --max-length N --output " +
                              std::filesystem::path(path).replace_extension(".safetensors").string() + "`");
}

// Collects rows unit by unit.
struct BatchBuilder {
  std::vector<int64_t> ids, positions, offsets{0}, document_offsets{0};
  std::vector<int64_t> loss_rows, targets, loss_offsets{0};
  std::vector<float> weights;
  bool grouped = false;

  TokenBatch build() && {
    TokenBatch batch;
    batch.ids = long_tensor(ids);
    batch.positions = long_tensor(positions);
    batch.segments = std::make_shared<kernels::Segments>(std::move(offsets));
    if (grouped) batch.documents = std::make_shared<kernels::Segments>(std::move(document_offsets));
    batch.targets = long_tensor(targets);
    batch.loss_weights = at::tensor(at::ArrayRef<float>(weights), at::TensorOptions(at::kFloat));
    if (loss_rows.size() != ids.size()) {
      batch.loss_rows = long_tensor(loss_rows);
      batch.loss_segments = std::make_shared<kernels::Segments>(std::move(loss_offsets));
    } else {
      batch.loss_segments = batch.segments;
    }
    return batch;
  }
};

}  // namespace

TokenBatch TokenBatch::on(at::Device device) const {
  TokenBatch there = *this;
  for (at::Tensor* rows : {&there.ids, &there.positions, &there.loss_rows, &there.targets, &there.loss_weights}) {
    if (rows->defined()) *rows = rows->to(device, rows->scalar_type(), /*non_blocking=*/true);
  }
  return there;
}

Dataset::Dataset(const std::filesystem::path& path, int64_t vocab_size, int64_t max_length) {
  require_prepared(path);
  const fsdp::SafetensorsFile file(path);
  const std::string name = path.string();
  tokens_ = column<int32_t>(file, name, "tokens", at::kInt);
  offsets_ = column<int64_t>(file, name, "offsets", at::kLong);
  loss_mask_ = column<uint8_t>(file, name, "loss_mask", at::kByte);
  metadata_ = file.metadata();
  if (offsets_.size() < 2) throw std::invalid_argument(name + ": there must be at least one text, found none");
  if (loss_mask_.size() != tokens_.size()) {
    throw std::invalid_argument(name + ": loss_mask must have one value per token (" + std::to_string(tokens_.size()) +
                                "), has " + std::to_string(loss_mask_.size()));
  }
  if (offsets_.front() != 0 || offsets_.back() != tokens()) {
    throw std::invalid_argument(name + ": offsets must run from 0 to the number of tokens (" +
                                std::to_string(tokens_.size()) + "), run from " + std::to_string(offsets_.front()) +
                                " to " + std::to_string(offsets_.back()));
  }
  grouped_ = file.contains("unit_offsets");
  if (grouped_) {
    unit_offsets_ = column<int64_t>(file, name, "unit_offsets", at::kLong);
    const bool spans = unit_offsets_.size() >= 2 && unit_offsets_.front() == 0 && unit_offsets_.back() == texts();
    if (!spans ||
        std::adjacent_find(unit_offsets_.begin(), unit_offsets_.end(), std::greater_equal<>()) != unit_offsets_.end()) {
      throw std::invalid_argument(name + ": unit_offsets must rise from 0 to the number of texts (" +
                                  std::to_string(texts()) + "), by at least one text for each unit");
    }
  } else {
    unit_offsets_.resize(offsets_.size());
    std::iota(unit_offsets_.begin(), unit_offsets_.end(), 0);
  }
  // The report names the unit by it: a text is protected within a group of its own alone, a user only as a whole.
  if ((unit_of_privacy() == "text") == grouped_) {
    throw std::invalid_argument(name + ": the unit that the file names must be " +
                                (grouped_ ? "what unit_offsets group texts to, e.g. user, is \"text\""
                                          : "text, as there are no unit_offsets that group texts to others"));
  }
  row_counts_.assign(static_cast<size_t>(units()), 0);
  size_t unit = 0;
  for (size_t u = 0; u + 1 < offsets_.size(); ++u) {
    if (static_cast<int64_t>(u) == unit_offsets_[unit + 1]) ++unit;
    const int64_t length = offsets_[u + 1] - offsets_[u];
    if (length < 0)
      throw std::invalid_argument(name + ": offsets must never decrease, do so at text " + std::to_string(u));
    const int64_t rows = length > 0 ? length - 1 : 0;
    if (rows > max_length) {
      throw std::invalid_argument(name + ": a text may have at most " + std::to_string(max_length + 1) +
                                  " tokens for this model (n_positions), text " + std::to_string(u) + " has more");
    }
    row_counts_[unit] += rows;
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (!(tokens_[i] >= 0 && tokens_[i] < vocab_size)) {
      throw std::invalid_argument(name + ": tokens must lie in [0, " + std::to_string(vocab_size) +
                                  ") (the model's vocab_size), token " + std::to_string(i) + " does not");
    }
  }
}

std::string_view Dataset::bytes_of(int64_t text) const {
  const auto first = static_cast<size_t>(offsets_.at(static_cast<size_t>(text)));
  const auto end = static_cast<size_t>(offsets_.at(static_cast<size_t>(text) + 1));
  return {reinterpret_cast<const char*>(tokens_.data() + first), (end - first) * sizeof(int32_t)};
}

std::optional<std::pair<int64_t, int64_t>> Dataset::text_in_common(const Dataset& other) const {
  constexpr size_t kNoRow = sizeof(int32_t);
  std::unordered_map<std::string_view, int64_t> places;
  for (int64_t text = 0; text < other.texts(); ++text) places.emplace(other.bytes_of(text), text);
  for (int64_t text = 0; text < texts(); ++text) {
    const std::string_view bytes = bytes_of(text);
    if (bytes.size() <= kNoRow) continue;
    if (const auto found = places.find(bytes); found != places.end()) return std::pair(text, found->second);
  }
  return std::nullopt;
}

int64_t Dataset::loss_tokens() const {
  int64_t count = 0;
  for (int64_t u = 0; u < texts(); ++u) {
    // A text's first token is never predicted.
    for (int64_t i = offsets_[static_cast<size_t>(u)] + 1; i < offsets_[static_cast<size_t>(u) + 1]; ++i) {
      count += loss_mask_[static_cast<size_t>(i)] != 0 ? 1 : 0;
    }
  }
  return count;
}

std::string Dataset::unit_of_privacy() const {
  const auto named = metadata_.find("unit");
  if (named != metadata_.end()) return named->second;
  return grouped_ ? "group of texts" : "text";
}

TokenBatch Dataset::batch(std::span<const int64_t> units) const {
  BatchBuilder rows;
  rows.grouped = grouped_;
  for (const int64_t unit : units) {
    const size_t losses_before = rows.loss_rows.size();
    for (int64_t text = unit_offsets_.at(static_cast<size_t>(unit));
         text < unit_offsets_.at(static_cast<size_t>(unit) + 1); ++text) {
      const int64_t first = offsets_.at(static_cast<size_t>(text));
      const int64_t end = offsets_.at(static_cast<size_t>(text) + 1);
      for (int64_t i = first; i + 1 < end; ++i) {
        const auto next = static_cast<size_t>(i + 1);
        if (loss_mask_[next] != 0) {
          rows.loss_rows.push_back(static_cast<int64_t>(rows.ids.size()));
          rows.targets.push_back(tokens_[next]);
        }
        rows.ids.push_back(tokens_[static_cast<size_t>(i)]);
        rows.positions.push_back(i - first);
      }
      rows.document_offsets.push_back(static_cast<int64_t>(rows.ids.size()));
    }
    const size_t losses = rows.loss_rows.size() - losses_before;
    rows.weights.resize(rows.loss_rows.size(), losses > 0 ? 1.0F / static_cast<float>(losses) : 0.0F);
    rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
    rows.loss_offsets.push_back(static_cast<int64_t>(rows.loss_rows.size()));
  }
  return std::move(rows).build();
}

TokenBatch batch_of_rows(std::span<const int64_t> ids) {
  BatchBuilder rows;
  for (size_t t = 0; t < ids.size(); ++t) {
    rows.ids.push_back(ids[t]);
    rows.positions.push_back(static_cast<int64_t>(t));
    rows.loss_rows.push_back(static_cast<int64_t>(t));
    rows.targets.push_back(0);
    rows.weights.push_back(0.0F);
  }
  rows.offsets.push_back(static_cast<int64_t>(ids.size()));
  return std::move(rows).build();
}

}  // namespace ghostshard::gpt2
