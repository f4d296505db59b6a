#include "accountant/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "accountant/ledger/sha256.h"
#include "accountant/ledger/strict_json.h"

namespace ghostshard::accountant {
namespace {

const std::string& no_previous() {
  static const std::string zeros(64, '0');
  return zeros;
}

[[noreturn]] void refuse(const std::filesystem::path& path, int64_t line, const std::string& rule) {
  throw InvalidLedger("ledger " + path.string() + ", line " + std::to_string(line) + ": " + rule);
}

// ---------------------------------------------------------------------------------------------------------------
// Reading

std::optional<nlohmann::json> parse_object(std::string_view line) {
  auto json = parse_strictly(line, kLongestLedgerLine);
  if (json && !json->is_object()) json.reset();
  return json;
}

std::string text_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A whole number >= 0; written by us it is never a float.
int64_t count_field(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = json.at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int64_t>::max())
    throw std::invalid_argument(std::string(key) + " must be a whole number >= 0, got " + value.dump());
  return value.get<int64_t>();
}

void check_header(const std::filesystem::path& path, const nlohmann::json& header) {
  const std::string schema = text_field(header, "schema");
  if (schema != kLedgerSchema)
    refuse(path, 1, std::string("schema must be ") + kLedgerSchema + ", got \"" + schema + '"');
  if (text_field(header, "type") != "header") refuse(path, 1, "the first line must be of type header");
  if (text_field(header, "previous") != no_previous()) refuse(path, 1, "the header's previous must be 64 zeros");
  try {
    (void)adjacency_from_string(text_field(header, "adjacency"));
  } catch (const std::invalid_argument& error) {
    refuse(path, 1, error.what());
  }
}

// Exactly these fields: an unknown field could change the meaning of a line.
template <size_t N>
void require_fields(const nlohmann::json& json, const char* kind, const std::array<const char*, N>& keys) {
  for (const char* key : keys)
    if (!json.contains(key)) throw std::invalid_argument(std::string(kind) + " must have " + key);
  if (json.size() != N)
    throw std::invalid_argument("must be " + std::string(kind) + " of schema " + kLedgerSchema + " and nothing more");
}

LedgerEntry parse_entry(const nlohmann::json& json) {
  require_fields(json, "a release", std::array{"type", "sequence", "step", "attempt", "event", "previous"});
  return {count_field(json, "sequence"), count_field(json, "step"), count_field(json, "attempt"),
          event_from_json(json.at("event")), ""};
}

LedgerEpoch parse_epoch(const nlohmann::json& json, int64_t number) {
  require_fields(json, "an epoch", std::array{"type", "sequence", "epoch", "step", "run_id", "key", "previous"});
  if (count_field(json, "epoch") != number)
    throw std::invalid_argument("epoch must be " + std::to_string(number) + ", got " + json.at("epoch").dump());
  if (!json.at("run_id").is_string() || !json.at("key").is_object())
    throw std::invalid_argument("an epoch's run_id must be text and its key an object");
  return {.sequence = count_field(json, "sequence"),
          .number = number,
          .step = count_field(json, "step"),
          .run_id = json.at("run_id").get<std::string>(),
          .key = json.at("key"),
          .hash = ""};
}

// Appends the line's content to the contents read so far. Throws std::invalid_argument with the rule.
void add_line(LedgerContents& contents, const nlohmann::json& json, std::string_view line, int64_t sequence) {
  const std::string type = text_field(json, "type");
  int64_t found = 0;
  const std::string hash = sha256_hex(line);
  if (type == "epoch") {
    contents.epochs.push_back(parse_epoch(json, static_cast<int64_t>(contents.epochs.size()) + 1));
    contents.epochs.back().hash = hash;
    found = contents.epochs.back().sequence;
  } else if (type == "release") {
    contents.entries.push_back(parse_entry(json));
    contents.entries.back().hash = hash;
    found = contents.entries.back().sequence;
  } else {
    throw std::invalid_argument("must be a release or an epoch of schema " + std::string(kLedgerSchema) + ", got \"" +
                                type + '"');
  }
  if (found != sequence)
    throw std::invalid_argument("sequence must be " + std::to_string(sequence) + ", got " + std::to_string(found));
  contents.head = hash;
}

struct Scan {
  LedgerContents contents;
  size_t complete_bytes = 0;        // up to and including the last newline
  bool last_lacks_newline = false;  // the last line parses, but its newline is missing
};

Scan scan(const std::filesystem::path& path, std::string_view bytes) {
  Scan result;
  LedgerContents& contents = result.contents;
  int64_t number = 0;
  for (size_t start = 0; start < bytes.size();) {
    const size_t end = bytes.find('\n', start);
    const bool complete = end != std::string_view::npos;
    const std::string_view line = bytes.substr(start, complete ? end - start : end);
    ++number;
    std::optional<nlohmann::json> json;
    try {
      json = parse_object(line);
    } catch (const std::invalid_argument& error) {
      refuse(path, number, error.what());
    }
    if (!json) {
      if (complete || number == 1) refuse(path, number, "must be a JSON object");
      contents.dropped_partial_line = true;
      break;
    }
    if (number == 1) {
      check_header(path, *json);
      contents.header = *json;
      contents.header_hash = sha256_hex(line);
      contents.head = contents.header_hash;
    } else {
      if (text_field(*json, "previous") != contents.head)
        refuse(path, number,
               "previous must be the SHA-256 of the line before (" + contents.head + "), got \"" +
                   text_field(*json, "previous") + "\": a line was changed, moved, inserted or taken out");
      try {
        add_line(contents, *json, line, number - 1);
      } catch (const std::exception& error) {
        refuse(path, number, error.what());
      }
    }
    result.last_lacks_newline = !complete;
    if (!complete) break;
    start = end + 1;
    result.complete_bytes = start;
  }
  if (number == 0) refuse(path, 1, "must be a header, the file is empty");
  return result;
}

void lock_exclusively(int descriptor, const std::filesystem::path& path) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK)
      throw std::runtime_error("cannot write ledger " + path.string() + ": another writer has it open");
    throw_system_error("lock", path);
  }
}

}  // namespace

LedgerContents read_ledger(const std::filesystem::path& path) {
  const OwnedDescriptor descriptor = open_file(path, O_RDONLY);
  return scan(path, read_all(descriptor.get(), path)).contents;
}

// ---------------------------------------------------------------------------------------------------------------
// Writing

namespace {

// The line's text, which the reader will take: what it refuses must not be written.
std::string line_text(const nlohmann::json& line, const char* what) {
  std::string text = exact_json_text(line, what);
  try {
    (void)parse_strictly(text, kLongestLedgerLine);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(what) + ": " + error.what());
  }
  return text;
}

}  // namespace

LedgerWriter LedgerWriter::create(const std::filesystem::path& path, nlohmann::json header) {
  if (!header.is_object()) throw std::invalid_argument("ledger header must be a JSON object, got " + header.dump());
  for (const char* reserved : {"type", "schema", "library_version", "previous"})
    if (header.contains(reserved))
      throw std::invalid_argument(std::string("ledger header must not set the reserved name ") + reserved);
  (void)adjacency_from_string(text_field(header, "adjacency"));
  header["type"] = "header";
  header["schema"] = kLedgerSchema;
  header["library_version"] = kLibraryVersion;
  header["previous"] = no_previous();
  const std::string line = line_text(header, "ledger header");

  if (std::filesystem::exists(std::filesystem::symlink_status(path)))
    throw std::invalid_argument("ledger " + path.string() + " must not exist yet: reopen it to go on with its run");
  LedgerWriter writer;
  writer.path_ = path;
  writer.descriptor_ = open_file(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND);
  try {
    lock_exclusively(writer.descriptor_.get(), path);
    write_all(writer.descriptor_.get(), line + '\n', path);
    sync_file(writer.descriptor_.get(), path);
    sync_parent_directory(path);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  writer.head_ = writer.header_hash_ = sha256_hex(line);
  return writer;
}

LedgerWriter LedgerWriter::reopen(const std::filesystem::path& path) {
  LedgerWriter writer;
  writer.path_ = path;
  writer.descriptor_ = open_file(path, O_RDWR | O_APPEND);
  const int descriptor = writer.descriptor_.get();
  lock_exclusively(descriptor, path);
  const Scan found = scan(path, read_all(descriptor, path));
  if (found.contents.dropped_partial_line) {
    if (::ftruncate(descriptor, static_cast<off_t>(found.complete_bytes)) != 0) throw_system_error("truncate", path);
  } else if (found.last_lacks_newline) {
    write_all(descriptor, "\n", path);
  }
  // Even if nothing was repaired: lines of a writer that died before its fsync may still be in memory only, and the
  // next lines rest on them.
  sync_file(descriptor, path);
  writer.head_ = found.contents.head;
  writer.header_hash_ = found.contents.header_hash;
  writer.entries_ = static_cast<int64_t>(found.contents.entries.size());
  writer.epochs_ = static_cast<int64_t>(found.contents.epochs.size());
  writer.lines_ = writer.entries_ + writer.epochs_;
  for (const LedgerEntry& entry : found.contents.entries) {
    int64_t& last = writer.last_attempts_.try_emplace(entry.step, entry.attempt).first->second;
    last = std::max(last, entry.attempt);
  }
  return writer;
}

void LedgerWriter::append(int64_t step, int64_t attempt, const Event& event) {
  if (!(step >= 0 && attempt >= 0))
    throw std::invalid_argument("step and attempt must be >= 0, got " + std::to_string(step) + " and " +
                                std::to_string(attempt));
  if (const auto last = last_attempts_.find(step); last != last_attempts_.end() && !(attempt > last->second))
    throw std::invalid_argument("step " + std::to_string(step) + " must be charged with an attempt above " +
                                std::to_string(last->second) +
                                ", the last one in the ledger: its noise would repeat; got " + std::to_string(attempt));
  write_line({{"type", "release"}, {"step", step}, {"attempt", attempt}, {"event", to_json(event)}}, "ledger entry");
  last_attempts_[step] = attempt;
  ++entries_;
}

void LedgerWriter::begin_epoch(int64_t step, const std::string& run_id, const nlohmann::json& key) {
  if (!(step >= 0)) throw std::invalid_argument("step must be >= 0, got " + std::to_string(step));
  if (!key.is_object()) throw std::invalid_argument("an epoch's key must be an object, got " + key.dump());
  write_line({{"type", "epoch"}, {"epoch", epochs_ + 1}, {"step", step}, {"run_id", run_id}, {"key", key}},
             "ledger epoch");
  ++epochs_;
}

void LedgerWriter::write_line(nlohmann::json line, const char* what) {
  if (failed_ || descriptor_.get() < 0)
    throw std::runtime_error("ledger " + path_.string() +
                             " refuses to append: an earlier append failed or the writer was moved away");
  line["sequence"] = lines_ + 1;
  line["previous"] = head_;
  const std::string text = line_text(line, what);
  failed_ = true;  // until the line is known to be on the disk
  write_all(descriptor_.get(), text + '\n', path_);
  sync_file(descriptor_.get(), path_);
  failed_ = false;
  head_ = sha256_hex(text);
  ++lines_;
}

}  // namespace ghostshard::accountant
