// The safetensors file format, both ways: 8-byte little-endian header length, JSON header, raw little-endian data.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ghostshard::fsdp {

// Memory-mapped and checked on opening: header length and JSON, dtypes, shapes against offsets, offsets inside the
// file and not overlapping. Throws std::invalid_argument: the path, what must hold, what was found.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  std::vector<std::string> names() const;  // in order of data offsets
  bool contains(const std::string& name) const;
  // A view of the mapped memory, read-only by contract, valid while this object lives. F32 F16 BF16 F64 I64 I32 U8.
  // Throws std::invalid_argument naming path and tensor if it is not there.
  at::Tensor tensor(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Writes to path + ".partial", fsyncs, renames: a crash leaves the old file or the new one. Contiguous CPU tensors.
// Throws std::runtime_error naming the path and the system's reason.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace ghostshard::fsdp
