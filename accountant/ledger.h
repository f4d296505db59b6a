// The write-ahead ledger: each release of a run is on disk before anyone can see its result.
//
// The file holds JSON lines. The first line is the header; each further line is one release, or a change of the noise
// key (an "epoch"). Every line carries "previous": the SHA-256 of the bytes of the line before without its newline, in
// hex; 64 zeros for the header. A line is appended and fsynced before append() returns. A crash may leave a last line
// cut short. If it parses, it counts as a release that may have happened. If not, it is dropped and reported: its
// release had not been permitted yet.
//
//   {"adjacency":"zero-out","clip_norm":1.0,…,"previous":"00…","schema":"ghostshard.ledger/1","type":"header"}
//   {"attempt":0,"event":{…},"previous":"6f…","sequence":1,"step":0,"type":"release"}
//   {"epoch":1,"key":{"origin":"operating system"},"previous":"a4…","run_id":"…","sequence":2,"step":1,"type":"epoch"}
//
// A release may have one more field, "clip_norm": the number that bounded this step's contributions, if it follows from
// the releases before. "sequence" counts the lines after the header. A step may be charged several times, once for each
// attempt, but never twice with the same attempt: the noise would be the same. From an epoch line on, coins and noise
// follow from another key or run id: the run was resumed, by another process. An epoch is no release and costs nothing.
//
// The report reads these fields of the header. All but the first are optional; others are kept and shown as they are:
//   adjacency         "zero-out", "add-or-remove" or "replace-one"; required, since without it nothing can be accounted
//   run_id            text
//   unit_of_privacy   text: what one unit is, e.g. "example", "document", "user"
//   units             n, the number of units, if it is public
//   expected_batch    B, the fixed divisor; maximum_batch: the cap, if larger draws are truncated
//   sampling_rate     q, as planned; sampling_groups: b, step t draws from group t mod b (accountant/rounds.h)
//   noise_multiplier  sigma, as planned; noise_bands: [1, a_1, …] (dp/mechanism/noise_bands.h), or
//                     noise_chain: {"steps", "decay"} (dp/mechanism/noise_chain.h), or
//                     noise_blt: {"outputs", "decays", "separation"} (accountant/blt_rows.h)
//   clip_norm         C; of the first step if it changes
//   clip_quantile     how it changes, {"target", "rate", "count_noise", "least", "most"} (dp/mechanism/clip_quantile.h)
//   planned_steps     T
//   delta             at which the run is to be reported
//   facts             statements of the run about itself, as build_report takes them, fixed before the first release
// Reserved, set by create(): type, schema, library_version, previous.
//
// The chain proves that no line was edited, reordered, inserted or taken out of the middle by accident. It does not
// show whole lines missing at the end, or a file rewritten from scratch: compare the head with one kept elsewhere, e.g.
// in a checkpoint or in a published report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/events.h"
#include "accountant/ledger/chain.h"
#include "accountant/ledger/durable_file.h"

namespace ghostshard::accountant {

inline constexpr const char* kLedgerSchema = "ghostshard.ledger/1";
inline constexpr const char* kLibraryVersion = "0.1.0";

struct LedgerEntry {
  int64_t sequence = 0;  // of the line: 1, 2, … over releases and epochs together, without gaps
  int64_t step = 0;      // logical step, from 0
  int64_t attempt = 0;   // > 0 when a step is redone after a crash: charged again
  Event event;
  std::string hash;  // SHA-256 of this line, hex
  std::optional<ClipNorm> clip_norm = {};
};

// Another key and run id hold from this line on. Epoch 0 is the header's.
struct LedgerEpoch {
  int64_t sequence = 0;
  int64_t number = 0;  // 1, 2, … without gaps
  int64_t step = 0;    // the first step that may be charged in it
  std::string run_id;
  nlohmann::json key;  // an object: where the key comes from and, if it can be had again, its commitment
  std::string hash;
};

struct LedgerContents {
  nlohmann::json header;
  std::vector<LedgerEntry> entries;  // releases
  std::vector<LedgerEpoch> epochs;   // changes of the key, usually none
  std::string head;                  // hash of the last line
  std::string header_hash;
  bool dropped_partial_line = false;
};

// Verifies schema, order, sequence numbers and the hash chain; no line may be longer than 16 MiB, nested deeper than 64
// or have a key twice. Throws InvalidLedger with path, line number and rule, and std::runtime_error if the file cannot
// be read.
LedgerContents read_ledger(const std::filesystem::path& path);

// The steps that a release speaks for: its own, or a pass of balls-in-bins sampling that begins there, of which the
// ledger does not know how many were made. Not beyond the header's planned steps.
std::set<int64_t> steps_of(const LedgerEntry& entry, const nlohmann::json& header);

// Appends to a ledger. It holds an exclusive advisory lock (flock) as long as it lives, so that the lines of two runs
// cannot interleave.
class LedgerWriter {
 public:
  // Creates the file exclusively and writes the header, adding type, schema, library version and previous. Throws
  // std::invalid_argument if the file exists, or the header is not an object, lacks a known adjacency or uses a
  // reserved name. Throws std::runtime_error with path and the system's reason if the file cannot be written; no file
  // is left behind then.
  static LedgerWriter create(const std::filesystem::path& path, nlohmann::json header);
  // Verifies a ledger, removes a partial last line and opens it for appending. Throws as read_ledger does, and
  // std::runtime_error if another writer holds the ledger.
  static LedgerWriter reopen(const std::filesystem::path& path);

  LedgerWriter(LedgerWriter&&) noexcept = default;
  LedgerWriter& operator=(LedgerWriter&&) noexcept = default;

  // The line is durable when this returns. Throws std::invalid_argument unless step and attempt are >= 0 and the
  // attempt is above every one already charged for the step; nothing is written then, and the writer stays usable.
  // Throws std::runtime_error, and writes nothing, unless the path still names this writer's file with all its bytes
  // and no others: a release must be where the report will look for it. If writing fails, throws std::runtime_error and
  // refuses every further append: the disk's content is then unknown, and reopen() finds it out. clip_norm: if it is
  // another in each step.
  void append(int64_t step, int64_t attempt, const Event& event, std::optional<ClipNorm> clip_norm = {});
  // The line is durable when this returns, and fails as append() does. Throws std::invalid_argument unless step >= 0
  // and key is an object.
  void begin_epoch(int64_t step, const std::string& run_id, const nlohmann::json& key);
  const std::string& head() const { return head_; }  // of the last line known to be durable
  const std::string& header_hash() const { return header_hash_; }
  int64_t entries() const { return entries_; }  // releases

 private:
  LedgerWriter() = default;
  void write_line(nlohmann::json line, const char* what);
  void require_own_file() const;
  std::filesystem::path path_;
  std::filesystem::path place_;  // absolute: the process may change its folder
  OwnedDescriptor descriptor_;
  std::string head_, header_hash_;
  int64_t entries_ = 0;
  int64_t lines_ = 0;                         // after the header
  int64_t epochs_ = 0;                        // after the header's own
  std::map<int64_t, int64_t> last_attempts_;  // by step
  int64_t bytes_ = 0;                         // of the file
  bool failed_ = false;
};

}  // namespace ghostshard::accountant
