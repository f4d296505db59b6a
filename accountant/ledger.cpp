#include "accountant/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "accountant/sha256.h"

namespace ghostshard::accountant {
namespace {

const std::string& no_previous() {
  static const std::string zeros(64, '0');
  return zeros;
}

[[noreturn]] void refuse(const std::filesystem::path& path, int64_t line, const std::string& rule) {
  throw std::invalid_argument("ledger " + path.string() + ", line " + std::to_string(line) + ": " + rule);
}

// ---------------------------------------------------------------------------------------------------------------
// Reading

std::optional<nlohmann::json> parse_object(std::string_view line) {
  nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
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

LedgerEntry parse_entry(const nlohmann::json& json) {
  static constexpr std::array kKeys = {"type", "sequence", "step", "attempt", "event", "previous"};
  for (const char* key : kKeys)
    if (!json.contains(key)) throw std::invalid_argument(std::string("a release must have ") + key);
  const bool has_epoch = json.contains("key_epoch");
  if (json.size() != kKeys.size() + (has_epoch ? 1 : 0) || text_field(json, "type") != "release")
    throw std::invalid_argument("must be a release of schema " + std::string(kLedgerSchema) + " and nothing more");
  return {count_field(json, "sequence"),
          count_field(json, "step"),
          count_field(json, "attempt"),
          event_from_json(json.at("event")),
          "",
          has_epoch ? count_field(json, "key_epoch") : 0};
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
    const auto json = parse_object(line);
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
        contents.entries.push_back(parse_entry(*json));
      } catch (const std::exception& error) {
        refuse(path, number, error.what());
      }
      LedgerEntry& entry = contents.entries.back();
      if (entry.sequence != number - 1)
        refuse(path, number,
               "sequence must be " + std::to_string(number - 1) + ", got " + std::to_string(entry.sequence));
      entry.hash = sha256_hex(line);
      contents.head = entry.hash;
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
  const std::string line = exact_json_text(header, "ledger header");

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
  writer.head_ = sha256_hex(line);
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
  // Also where nothing was repaired: lines of a writer that died before its fsync may still be in memory
  // only, and what is appended next rests on them.
  sync_file(descriptor, path);
  writer.head_ = found.contents.head;
  writer.entries_ = static_cast<int64_t>(found.contents.entries.size());
  return writer;
}

void LedgerWriter::append(int64_t step, int64_t attempt, const Event& event, int64_t key_epoch) {
  if (!(step >= 0 && attempt >= 0 && key_epoch >= 0))
    throw std::invalid_argument("step, attempt and key epoch must be >= 0, got " + std::to_string(step) + ", " +
                                std::to_string(attempt) + " and " + std::to_string(key_epoch));
  if (failed_ || descriptor_.get() < 0)
    throw std::runtime_error("ledger " + path_.string() +
                             " refuses to append: an earlier append failed or the writer was moved away");
  nlohmann::json entry = {{"type", "release"},  {"sequence", entries_ + 1}, {"step", step},
                          {"attempt", attempt}, {"event", to_json(event)},  {"previous", head_}};
  if (key_epoch > 0) entry["key_epoch"] = key_epoch;
  const std::string line = exact_json_text(entry, "ledger entry");
  failed_ = true;  // until the line is known to be on the disk
  write_all(descriptor_.get(), line + '\n', path_);
  sync_file(descriptor_.get(), path_);
  failed_ = false;
  head_ = sha256_hex(line);
  ++entries_;
}

}  // namespace ghostshard::accountant
