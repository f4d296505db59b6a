#include "accountant/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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

// ---------------------------------------------------------------------------------------------------------------
// Reading

// Throws std::invalid_argument with the rule.
void check_header(const nlohmann::json& header) {
  const std::string schema = text_field(header, "schema");
  if (schema != kLedgerSchema)
    throw std::invalid_argument(std::string("schema must be ") + kLedgerSchema + ", got \"" + schema + '"');
  if (text_field(header, "type") != "header") throw std::invalid_argument("the first line must be of type header");
  (void)adjacency_from_string(text_field(header, "adjacency"));
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
  const auto clip_norm = json.find("clip_norm");
  if (clip_norm == json.end()) {
    require_fields(json, "a release", std::array{"type", "sequence", "step", "attempt", "event", "previous"});
  } else {
    require_fields(json, "a release",
                   std::array{"type", "sequence", "step", "attempt", "event", "previous", "clip_norm"});
    if (!clip_norm->is_number()) throw std::invalid_argument("clip_norm must be a number, got " + clip_norm->dump());
  }
  LedgerEntry entry{count_field(json, "sequence"), count_field(json, "step"), count_field(json, "attempt"),
                    event_from_json(json.at("event")), ""};
  if (clip_norm != json.end()) entry.clip_norm.emplace(clip_norm->get<double>());
  return entry;
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
void add_line(LedgerContents& contents, const nlohmann::json& json, const std::string& hash, int64_t sequence) {
  const std::string type = text_field(json, "type");
  int64_t found = 0;
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
  Chain chain;
};

constexpr const char* kUnbegun =
    "; if the run that began it ended just then, nothing was released, and its folder can be removed";

Scan scan(const std::filesystem::path& path, std::string_view bytes) {
  Scan result;
  LedgerContents& contents = result.contents;
  const auto take = [&](const nlohmann::json& json, int64_t number, const std::string& hash) {
    if (number > 1) return add_line(contents, json, hash, number - 1);
    check_header(json);
    contents.header = json;
    contents.head = contents.header_hash = hash;
  };
  result.chain = read_chain("ledger", path, bytes, take, kUnbegun);
  contents.dropped_partial_line = result.chain.dropped_partial_line;
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

std::set<int64_t> steps_of(const LedgerEntry& entry, const nlohmann::json& header) {
  std::set<int64_t> steps = {entry.step};
  const auto* pass = std::get_if<BallsInBinsGaussianEvent>(&entry.event);
  if (pass == nullptr) return steps;
  const auto planned = header.find("planned_steps");
  const int64_t end = planned != header.end() && planned->is_number_integer() ? planned->get<int64_t>()
                                                                              : std::numeric_limits<int64_t>::max();
  for (int64_t i = 1; i < pass->steps && entry.step < end - i; ++i) steps.insert(entry.step + i);
  return steps;
}

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
  header["previous"] = kNoPrevious;
  const std::string line = chained_line_text(header, "ledger header");

  if (std::filesystem::exists(std::filesystem::symlink_status(path)))
    throw std::invalid_argument("ledger " + path.string() + " must not exist yet: reopen it to go on with its run");
  LedgerWriter writer;
  writer.path_ = path;
  writer.place_ = std::filesystem::absolute(path);
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
  writer.bytes_ = static_cast<int64_t>(line.size()) + 1;
  return writer;
}

LedgerWriter LedgerWriter::reopen(const std::filesystem::path& path) {
  LedgerWriter writer;
  writer.path_ = path;
  writer.place_ = std::filesystem::absolute(path);
  writer.descriptor_ = open_file(path, O_RDWR | O_APPEND);
  const int descriptor = writer.descriptor_.get();
  lock_exclusively(descriptor, path);
  const Scan found = scan(path, read_all(descriptor, path));
  mend_tail(descriptor, path, found.chain);
  // Even if nothing was repaired: lines of a writer that died before its fsync may still be in memory only, and the
  // next lines rest on them.
  sync_file(descriptor, path);
  writer.head_ = found.contents.head;
  writer.header_hash_ = found.contents.header_hash;
  writer.entries_ = static_cast<int64_t>(found.contents.entries.size());
  writer.epochs_ = static_cast<int64_t>(found.contents.epochs.size());
  writer.lines_ = writer.entries_ + writer.epochs_;
  writer.bytes_ = static_cast<int64_t>(status_of(descriptor, path).st_size);
  for (const LedgerEntry& entry : found.contents.entries) {
    int64_t& last = writer.last_attempts_.try_emplace(entry.step, entry.attempt).first->second;
    last = std::max(last, entry.attempt);
  }
  return writer;
}

void LedgerWriter::append(int64_t step, int64_t attempt, const Event& event, std::optional<ClipNorm> clip_norm) {
  if (!(step >= 0 && attempt >= 0))
    throw std::invalid_argument("step and attempt must be >= 0, got " + std::to_string(step) + " and " +
                                std::to_string(attempt));
  if (const auto last = last_attempts_.find(step); last != last_attempts_.end() && !(attempt > last->second))
    throw std::invalid_argument("step " + std::to_string(step) + " must be charged with an attempt above " +
                                std::to_string(last->second) +
                                ", the last one in the ledger: its noise would repeat; got " + std::to_string(attempt));
  nlohmann::json line = {{"type", "release"}, {"step", step}, {"attempt", attempt}, {"event", to_json(event)}};
  if (clip_norm) line["clip_norm"] = clip_norm->value();
  write_line(std::move(line), "ledger entry");
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

void LedgerWriter::require_own_file() const {
  const struct stat held = status_of(descriptor_.get(), path_);
  struct stat named {};
  if (::stat(place_.c_str(), &named) != 0 || named.st_dev != held.st_dev || named.st_ino != held.st_ino)
    throw std::runtime_error("ledger " + path_.string() +
                             " must stay where its run began it: it was removed, moved or replaced under way");
  if (held.st_size != bytes_)
    throw std::runtime_error("ledger " + path_.string() + " must hold the " + std::to_string(bytes_) +
                             " bytes that its run wrote, it holds " + std::to_string(held.st_size) +
                             ": it was changed under way");
}

void LedgerWriter::write_line(nlohmann::json line, const char* what) {
  if (failed_ || descriptor_.get() < 0)
    throw std::runtime_error("ledger " + path_.string() +
                             " refuses to append: an earlier append failed or the writer was moved away");
  require_own_file();
  line["sequence"] = lines_ + 1;
  line["previous"] = head_;
  const std::string text = chained_line_text(line, what);
  failed_ = true;  // until the line is known to be on the disk
  write_all(descriptor_.get(), text + '\n', path_);
  sync_file(descriptor_.get(), path_);
  failed_ = false;
  bytes_ += static_cast<int64_t>(text.size()) + 1;
  head_ = sha256_hex(text);
  ++lines_;
}

}  // namespace ghostshard::accountant
