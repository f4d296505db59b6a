// What a test's thread has synchronised with the disk. The program puts its own fsync in the place of the system's
// (once), which calls note_synchronised.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <filesystem>
#include <string>
#include <vector>

namespace ghostshard::tests {

struct Synchronised {
  std::string name;  // of the file or folder
  bool folder;
  int64_t bytes;  // its size then; 0 for a folder
};

inline std::vector<Synchronised>& synchronised() {
  thread_local std::vector<Synchronised> calls;
  return calls;
}

inline void note_synchronised(int descriptor) {
  struct stat status {};
  std::array<char, PATH_MAX> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (::fstat(descriptor, &status) != 0 || ::readlink(link.c_str(), path.data(), path.size() - 1) < 0) return;
  const bool folder = S_ISDIR(status.st_mode);
  synchronised().push_back({std::filesystem::path(path.data()).filename().string(), folder,
                            folder ? 0 : static_cast<int64_t>(status.st_size)});
}

}  // namespace ghostshard::tests
