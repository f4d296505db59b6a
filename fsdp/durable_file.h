// Files that are on the disk, whole, when a call returns (POSIX).
//
// A file is written beside its place under the name PATH.partial, synchronised and renamed; then the folder is
// synchronised, because until then a crash may undo the rename. A crash therefore leaves the old file or the new one.
// The system's calls are repeated if a signal interrupts them. Every other failure is a std::runtime_error "PATH cannot
// be …: REASON" with the system's reason. (A failed fsync is not repeated: the kernel may have dropped the pages, and
// would report success the next time.)
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace ghostshard::fsdp {

// One such file, written piece by piece. One object at a time for one path.
class DurableFile {
 public:
  // Creates PATH.partial (mode 0666 less the umask), or empties the one that a crash left. std::runtime_error if PATH
  // is a folder, a device, a pipe or a socket, whose place a file would take.
  explicit DurableFile(const std::filesystem::path& path);
  // Removes PATH.partial unless commit() put it in its place.
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* bytes, size_t count);
  // Puts the file in its place, durably. Once, as the last call. If only the folder could not be synchronised, the new
  // file is in its place and this throws all the same.
  void commit();

 private:
  std::filesystem::path path_, partial_;
  int descriptor_;
};

// A file with this content.
void write_durably(const std::filesystem::path& path, std::string_view text);

// Renames a file or folder within one folder, durably. A file that has the new name is replaced.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ghostshard::fsdp
