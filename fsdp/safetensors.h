// The safetensors file format, both ways: 8-byte little-endian header length, JSON header, raw little-endian data.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ghostshard::fsdp {

// A file that is memory-mapped, and checked when it is opened: header length (at most 100 MB) and JSON, names used
// once, dtypes, shapes against offsets, data without overlaps or gaps up to the end of the file. Throws
// std::invalid_argument with the path, the rule and the value found, also for a path that is no file;
// std::runtime_error with the system's reason if the file cannot be read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  std::vector<std::string> names() const;  // in order of data offsets
  bool contains(const std::string& name) const;
  // A view of the mapped memory, read-only by contract (writing to it ends the process), which keeps the mapping alive;
  // a copy if the file did not align the data to its type. F32 F16 BF16 F64 I64 I32 I16 I8 U8 BOOL. Throws
  // std::invalid_argument naming path and tensor if it is not there.
  at::Tensor tensor(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Writes contiguous CPU tensors in the order given, durably (fsdp/durable_file.h): a crash leaves the old file or the
// new one. Throws std::invalid_argument for a tensor that cannot be written (dtype, layout, a name used twice),
// std::runtime_error with the path and the system's reason.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace ghostshard::fsdp
