#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "fsdp/safetensors.h"
#include "fsdp/safetensors/dtypes.h"

namespace ghostshard::fsdp {
namespace {

std::string header_text(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  const auto reject = [](const NamedTensor& tensor, const std::string& rule) {
    throw std::invalid_argument("write_safetensors: tensor '" + tensor.name + "' " + rule);
  };
  // In the order given: what lies in a file should not depend on how names sort.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    const at::Tensor& tensor = named.tensor;
    if (named.name == "__metadata__") reject(named, "must have another name, which the format reserves");
    if (header.contains(named.name)) reject(named, "must be named once, got its name twice");
    if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.is_contiguous()) {
      reject(named, "must be a contiguous CPU tensor");
    }
    const auto dtype = name_of(tensor.scalar_type());
    if (!dtype)
      reject(named, "must have a dtype of the format, got " + std::string(c10::toString(tensor.scalar_type())));
    header[named.name] = {
        {"dtype", *dtype}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, offset + tensor.nbytes()}}};
    offset += tensor.nbytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data then begin at a multiple of 8 bytes
  if (text.size() > kMostHeaderBytes)
    throw std::invalid_argument("write_safetensors: the header must be at most 100 MB");
  return text;
}

// Writes all bytes, fsyncs, and removes the file again unless keep() was reached.
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path path)
      : path_(std::move(path)), file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) fail("cannot be created");
  }
  ~PartialFile() {
    if (file_ >= 0) {
      close(file_);
      unlink(path_.c_str());
    }
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write_all(const void* bytes, size_t count) {
    const char* from = static_cast<const char*>(bytes);
    while (count > 0) {
      const ssize_t written = write(file_, from, count);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot be written");
      from += written;
      count -= static_cast<size_t>(written);
    }
  }

  void rename_to(const std::filesystem::path& path) {
    if (fsync(file_) != 0) fail("cannot be synchronised");
    if (rename(path_.c_str(), path.c_str()) != 0) fail("cannot be renamed");
    close(std::exchange(file_, -1));
    // The rename itself is durable once the folder is.
    const std::filesystem::path parent = path.parent_path().empty() ? "." : path.parent_path();
    const int folder = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      fsync(folder);
      close(folder);
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error(path_.string() + " " + what + ": " + std::generic_category().message(errno));
  }
  std::filesystem::path path_;
  int file_;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(tensors, metadata);
  PartialFile file(path.string() + ".partial");
  const uint64_t header_bytes = header.size();
  file.write_all(&header_bytes, sizeof(header_bytes));
  file.write_all(header.data(), header.size());
  for (const NamedTensor& named : tensors) file.write_all(named.tensor.const_data_ptr(), named.tensor.nbytes());
  file.rename_to(path);
}

}  // namespace ghostshard::fsdp
