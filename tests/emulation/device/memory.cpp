#include "tests/emulation/device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <system_error>

#include "tests/emulation/device/places.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#endif

namespace ghostshard::emulation {
namespace {

constexpr size_t kArena = size_t{2} << 30;  // of addresses; a page is allocated when it is first written
constexpr size_t kAlignment = 512;          // as CUDA's allocators align
constexpr size_t kGap = 64;                 // after every allocation, for AddressSanitizer

// The list of allocations is in the host's own memory.
class Arena {
 public:
  Arena() {
    const int file = ::memfd_create("emulated-device", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, kArena) != 0) throw std::system_error(errno, std::generic_category(), "memfd");
    device_ = map(file, PROT_NONE);
    host_ = map(file, PROT_READ | PROT_WRITE);
    ::close(file);
    ASAN_POISON_MEMORY_REGION(device_, kArena);
  }

  void* allocate(size_t bytes) {
    if (bytes > kArena) throw std::bad_alloc();
    const size_t room = (bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard lock(book_);
    const int64_t offset = places_.take(static_cast<int64_t>(room));
    if (offset < 0) throw std::bad_alloc();
    used_[offset] = {.bytes = bytes, .room = room};
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    std::memset(host_ + offset, 0xff, bytes);
    ASAN_UNPOISON_MEMORY_REGION(device_ + offset, bytes);
    return device_ + offset;
  }

  void free(void* address) {
    const std::lock_guard lock(book_);
    const auto found = used_.find(static_cast<char*>(address) - device_);
    if (found == used_.end()) std::abort();  // freed twice, or never ours
    const auto [offset, of] = *found;
    used_.erase(found);
    in_use_ -= of.bytes;
    std::memset(host_ + offset, 0xff, of.bytes);
    ASAN_POISON_MEMORY_REGION(device_ + offset, of.bytes);
    places_.give_back(offset, static_cast<int64_t>(of.room));
  }

  bool holds(const void* address) const { return address >= device_ && address < device_ + kArena; }
  void* host_view(const void* address) const { return host_ + (static_cast<const char*>(address) - device_); }
  size_t in_use() {
    const std::lock_guard lock(book_);
    return in_use_;
  }

  size_t peak() {
    const std::lock_guard lock(book_);
    return peak_;
  }
  void reset_peak() {
    const std::lock_guard lock(book_);
    peak_ = in_use_;
  }

  // Opens only as far as there are allocations: changing a page's protection costs time for every page that was ever
  // touched, and a launch has no address beyond them.
  void open() {
    turn_.lock();
    ++depth_;
    const size_t end = end_of_used();
    if (end > opened_) protect(PROT_READ | PROT_WRITE, end);
    opened_ = std::max(opened_, end);
  }
  void close() {
    if (--depth_ == 0) {
      protect(PROT_NONE, opened_);
      opened_ = 0;
    }
    turn_.unlock();
  }

 private:
  struct Used {
    size_t bytes, room;
  };

  static char* map(int file, int protection) {
    void* const start = ::mmap(nullptr, kArena, protection, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();  // NOLINT(performance-no-int-to-ptr): the system's macro
    return static_cast<char*>(start);
  }
  // Of whole pages.
  size_t end_of_used() {
    static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const std::lock_guard lock(book_);
    if (used_.empty()) return 0;
    const auto& [offset, last] = *used_.rbegin();
    return (static_cast<size_t>(offset) + last.room + page - 1) / page * page;
  }
  void protect(int protection, size_t bytes) {
    if (bytes > 0 && ::mprotect(device_, bytes, protection) != 0) std::abort();
  }

  char* device_ = nullptr;
  char* host_ = nullptr;
  std::mutex book_;
  ghostshard::tests::Places places_{kArena};
  std::map<int64_t, Used> used_;
  size_t in_use_ = 0, peak_ = 0;
  std::recursive_mutex turn_;
  int depth_ = 0;
  size_t opened_ = 0;  // bytes from the beginning, while depth_ > 0
};

void say_and_end(int signal, siginfo_t* about, void*);

// Never destroyed: tensors may live as long as the program.
Arena& arena() {
  static auto* const instance = [] {
    auto* made = new Arena;
    struct sigaction action {};
    action.sa_sigaction = &say_and_end;
    action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGSEGV, &action, nullptr);
    return made;
  }();
  return *instance;
}

// Returning repeats the access, which then ends the program as usual.
void say_and_end(int /*signal*/, siginfo_t* about, void* /*context*/) {
  constexpr char kSentence[] = "emulated device: the host touched memory of the device\n";
  if (arena().holds(about->si_addr)) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kSentence, sizeof kSentence - 1);
  }
}

}  // namespace

void* allocate_device_bytes(size_t bytes) { return bytes == 0 ? nullptr : arena().allocate(bytes); }
void free_device_bytes(void* device_address) noexcept {
  if (device_address != nullptr) arena().free(device_address);
}
size_t device_bytes_in_use() { return arena().in_use(); }
size_t device_bytes_peak() { return arena().peak(); }
void reset_device_bytes_peak() { arena().reset_peak(); }
bool is_device_address(const void* address) { return arena().holds(address); }
void* host_view(const void* device_address) {
  return device_address == nullptr ? nullptr : arena().host_view(device_address);
}

OpenDeviceMemory::OpenDeviceMemory() { arena().open(); }
OpenDeviceMemory::~OpenDeviceMemory() { arena().close(); }

}  // namespace ghostshard::emulation
