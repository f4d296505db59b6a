#include "accountant/budget_register/transaction.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "accountant/ledger.h"
#include "accountant/ledger/sha256.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr std::chrono::seconds kLongestWait{60};

// The others hold the lock for as long as an accountant takes, seconds at most.
void lock(int descriptor, const std::filesystem::path& file) {
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw_system_error("lock", file);
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("budget register " + file.string() + ": another process has held its lock for a minute");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::string random_bytes() {
  std::string bytes(kKeyBytes, '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw_system_error("draw random bytes for", "a budget register's key");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

std::string commitment_of(const std::string& key) { return hmac_sha256_hex(key, "budget register: commitment"); }

void write_new(const std::filesystem::path& file, const std::string& bytes) {
  const OwnedDescriptor descriptor = open_file(file, O_WRONLY | O_CREAT | O_EXCL);
  write_all(descriptor.get(), bytes, file);
  sync_file(descriptor.get(), file);
  sync_parent_directory(file);
}

void check_mode(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_system_error("look at", path);
  if (!S_ISREG(status.st_mode))
    throw std::invalid_argument("budget register's key " + path.string() + " must be a regular file");
  if ((status.st_mode & 077) != 0)
    throw std::invalid_argument("budget register's key " + path.string() +
                                " must be readable by its owner alone (mode 0600)");
}

// The key last: while it is empty nobody can have used the register, and whoever finds the two so makes them anew.
std::string make_register(int descriptor, const std::filesystem::path& file, Adjacency adjacency) {
  std::string key = random_bytes();
  const nlohmann::json header = {{"type", "header"},
                                 {"schema", kBudgetRegisterSchema},
                                 {"library_version", kLibraryVersion},
                                 {"adjacency", to_string(adjacency)},
                                 {"key_commitment", commitment_of(key)},
                                 {"previous", kNoPrevious}};
  if (std::filesystem::exists(file)) std::filesystem::remove(file);
  write_new(file, chained_line_text(header, "budget register's header") + '\n');
  try {
    write_all(descriptor, key, key_path(file));
    sync_file(descriptor, key_path(file));
  } catch (...) {
    [[maybe_unused]] const int as_it_was = ::ftruncate(descriptor, 0);
    throw;
  }
  return key;
}

// Whether the file can be what a make_register() left that did not come to its end: nothing, or a header or its begin.
bool is_begun(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return true;
  const std::string bytes = read_all(open_file(file, O_RDONLY).get(), file);
  return bytes.empty() || (bytes.starts_with("{\"adjacency\":") && bytes.find('\n') >= bytes.size() - 1);
}

}  // namespace

std::filesystem::path key_path(const std::filesystem::path& file) { return file.string() + ".key"; }

std::string register_key(const std::filesystem::path& file, Adjacency adjacency) {
  const auto path = key_path(file);
  const bool registered = std::filesystem::exists(file);
  if (registered && !std::filesystem::exists(path))
    throw std::invalid_argument("budget register " + file.string() + " is there without its key " + path.string() +
                                ": without it no data can be recognised");
  int raw = -1;
  do raw = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  while (raw < 0 && errno == EINTR);
  if (raw < 0)
    throw std::invalid_argument("budget register " + file.string() + " cannot be used, its key " + path.string() +
                                " neither read nor made: " + std::generic_category().message(errno));
  const OwnedDescriptor descriptor(raw);
  lock(raw, file);
  check_mode(raw, path);
  std::string key = read_all(raw, path);
  if (key.empty() && is_begun(file)) return make_register(raw, file, adjacency);
  if (key.size() != kKeyBytes)
    throw std::invalid_argument("budget register's key " + path.string() + " must hold exactly 32 bytes, has " +
                                std::to_string(key.size()));
  if (!std::filesystem::exists(file))
    throw std::invalid_argument("the key " + path.string() + " is there without its budget register " + file.string() +
                                ": what its runs have spent is not known. Put the register back, or name another one");
  const BudgetRecords records = read_budget_register(file);
  if (records.key_commitment != commitment_of(key))
    throw std::invalid_argument("the key " + path.string() + " is not that of the budget register beside it");
  if (records.adjacency != adjacency)
    throw std::invalid_argument("budget register " + file.string() + " is of " + to_string(records.adjacency) +
                                " neighbours, the run is of " + to_string(adjacency));
  return key;
}

RegisterTransaction::RegisterTransaction(const std::filesystem::path& file, std::string& seen)
    : file_(file), seen_(seen), lock_(open_file(key_path(file), O_RDWR)) {
  lock(lock_.get(), file);
  descriptor_ = open_file(file, O_RDWR | O_APPEND);
  bool there = seen.empty();
  const Chain chain = read_records(file, read_all(descriptor_.get(), file), records_,
                                   [&](const std::string& hash) { there = there || hash == seen; });
  if (!there)
    throw std::invalid_argument("the budget register " + file.string() +
                                " lacks lines that this run has seen in it: it was put back to an earlier state, so "
                                "what all runs have spent cannot be known");
  seen_ = records_.head;
  mend_tail(descriptor_.get(), file, chain);
  // Lines of a process that died before its fsync may still be in memory only, and the next ones rest on them.
  sync_file(descriptor_.get(), file);
}

BudgetRecords RegisterTransaction::with(nlohmann::json line) const {
  BudgetRecords records = records_;
  line["previous"] = records_.head;
  apply_line(records, nlohmann::json::parse(chained_line_text(line, "budget register's line")), 2);  // as it is read
  return records;
}

void RegisterTransaction::append(nlohmann::json line) {
  line["previous"] = records_.head;
  const std::string text = chained_line_text(line, "budget register's line");
  BudgetRecords after = with(line);
  write_all(descriptor_.get(), text + '\n', file_);
  sync_file(descriptor_.get(), file_);
  after.head = sha256_hex(text);
  records_ = std::move(after);
  seen_ = records_.head;
}

}  // namespace ghostshard::accountant
