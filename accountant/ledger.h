// The write-ahead ledger: what a run has spent, on disk before anyone can see the result.
//
// JSON lines. The first line is the header (schema, run id, adjacency, unit of privacy, n, expected batch, clip norm,
// planned steps, …); each further line is one release. Every line carries "previous" (the SHA-256 of the line before,
// hex; 64 zeros for the header) and is appended and fsynced before append() returns. A crash may leave a last line
// cut short: it is recovered as "one release that may have happened" only if it parses; otherwise it is dropped and
// said so (its release had not been permitted yet).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/events.h"

namespace ghostshard::accountant {

inline constexpr const char* kLedgerSchema = "ghostshard.ledger/1";

struct LedgerEntry {
  int64_t sequence = 0;  // 1, 2, … without gaps
  int64_t step = 0;      // logical step, from 0
  int64_t attempt = 0;   // > 0 when a step is redone after a crash: charged again
  Event event;
  std::string hash;      // SHA-256 of this line, hex
};

struct LedgerContents {
  nlohmann::json header;
  std::vector<LedgerEntry> entries;
  std::string head;             // hash of the last line
  std::string header_hash;
  bool dropped_partial_line = false;
};

// Verifies schema, order, sequence numbers and the hash chain. Throws std::invalid_argument: path, line number, rule.
LedgerContents read_ledger(const std::filesystem::path& path);

class LedgerWriter {
 public:
  // Creates the file exclusively (std::invalid_argument if it exists) and writes the header, to which schema and
  // library version are added. Throws std::runtime_error naming path and the system's reason where it cannot.
  static LedgerWriter create(const std::filesystem::path& path, nlohmann::json header);
  // Opens a verified ledger for appending.
  static LedgerWriter reopen(const std::filesystem::path& path);

  LedgerWriter(LedgerWriter&&) noexcept;
  LedgerWriter& operator=(LedgerWriter&&) noexcept;
  ~LedgerWriter();

  // Durable when it returns. On failure throws std::runtime_error and refuses every further append.
  void append(int64_t step, int64_t attempt, const Event& event);
  const std::string& head() const { return head_; }
  int64_t entries() const { return entries_; }

 private:
  LedgerWriter() = default;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string head_;
  int64_t entries_ = 0;
};

}  // namespace ghostshard::accountant
