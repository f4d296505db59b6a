#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <unordered_set>

#include "fsdp/regular_file.h"
#include "fsdp/safetensors.h"
#include "fsdp/safetensors/dtypes.h"

namespace ghostshard::fsdp {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and so are the views of it");

// Outside the anonymous namespace, as Mapping holds it.
struct SafetensorsEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;  // within the data
};

namespace {

using nlohmann::json;

[[noreturn]] void reject(const std::filesystem::path& path, const std::string& rule, const std::string& found) {
  throw std::invalid_argument(path.string() + ": " + rule + ", got " + found);
}

// nlohmann keeps the last of several equal keys; a file that uses a name twice must be refused.
json parse_header(const std::filesystem::path& path, std::string_view text) {
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      reject(path, "every name in the header must be used once", value.dump() + " twice");
    }
    return true;
  };
  if (text.empty() || text.front() != '{') reject(path, "the header must begin with '{'", "something else");
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    reject(path, "the header must be JSON", error.what());
  }
}

// data_bytes bounds every product, so nothing here can overflow.
SafetensorsEntry parse_entry(const std::filesystem::path& path, const std::string& name, const json& value,
                             uint64_t data_bytes) {
  const std::string tensor = "tensor '" + name + "': ";
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets") ||
      value.size() != 3) {
    reject(path, tensor + "its entry must hold dtype, shape and data_offsets", value.dump());
  }
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  const auto type = dtype.is_string() ? dtype_of(dtype.get<std::string>()) : std::nullopt;
  if (!type) reject(path, tensor + "dtype must be one of F32 F16 BF16 F64 I64 I32 I16 I8 U8 BOOL", dtype.dump());
  const auto is_count = [](const json& number) { return number.is_number_unsigned(); };
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) {
    reject(path, tensor + "shape must be a list of non-negative integers", shape.dump());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !std::all_of(offsets.begin(), offsets.end(), is_count)) {
    reject(path, tensor + "data_offsets must be two non-negative integers", offsets.dump());
  }
  SafetensorsEntry entry{
      .dtype = *type, .shape = {}, .begin = offsets[0].get<uint64_t>(), .end = offsets[1].get<uint64_t>()};
  if (!(entry.begin <= entry.end && entry.end <= data_bytes)) {
    reject(path, tensor + "data_offsets must rise and lie within the " + std::to_string(data_bytes) + " bytes of data",
           offsets.dump());
  }
  uint64_t bytes = c10::elementSize(*type);
  bool empty = false;
  for (const json& extent : shape) {
    const auto n = extent.get<uint64_t>();
    if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      reject(path, tensor + "an extent must fit in 63 bits", extent.dump());
    }
    empty = empty || n == 0;
    bytes = n != 0 && bytes > data_bytes / n ? data_bytes + 1 : bytes * std::max<uint64_t>(n, 1);
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  if (empty) bytes = 0;
  if (bytes != entry.end - entry.begin) {
    reject(path, tensor + "data_offsets must span the bytes that shape and dtype need", value.dump());
  }
  return entry;
}

}  // namespace

struct SafetensorsFile::Mapping {
  explicit Mapping(const std::filesystem::path& file_path) : path(file_path) {
    const RegularFile file(path);
    bytes = static_cast<size_t>(file.bytes());
    if (bytes > 0) address = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (bytes > 0 && address == MAP_FAILED)
      throw std::runtime_error(path.string() + " cannot be mapped: " + std::generic_category().message(errno));
  }
  ~Mapping() {
    if (address != MAP_FAILED) munmap(address, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void read_header();

  std::filesystem::path path;
  void* address = MAP_FAILED;
  size_t bytes = 0;
  const char* data = nullptr;
  std::map<std::string, SafetensorsEntry> entries;
  std::vector<std::string> names;  // by offset
  std::map<std::string, std::string> metadata;
};

void SafetensorsFile::Mapping::read_header() {
  uint64_t header_bytes = 0;
  if (bytes < sizeof(header_bytes)) reject(path, "the file must hold at least 8 bytes", std::to_string(bytes));
  std::memcpy(&header_bytes, address, sizeof(header_bytes));
  const uint64_t most = std::min<uint64_t>(kMostHeaderBytes, bytes - sizeof(header_bytes));
  if (header_bytes > most) {
    reject(path, "the header must be at most 100 MB and within the file (" + std::to_string(most) + " bytes)",
           std::to_string(header_bytes));
  }
  const char* text = static_cast<const char*>(address) + sizeof(header_bytes);
  const json header = parse_header(path, {text, header_bytes});
  data = text + header_bytes;
  const uint64_t data_bytes = bytes - sizeof(header_bytes) - header_bytes;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.emplace(name, parse_entry(path, name, value, data_bytes));
      names.push_back(name);
      continue;
    }
    if (!value.is_object()) reject(path, "__metadata__ must map strings to strings", value.dump());
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) reject(path, "__metadata__ must map strings to strings", value.dump());
      metadata.emplace(key, text_value.get<std::string>());
    }
  }
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    const SafetensorsEntry &x = entries.at(a), &y = entries.at(b);
    return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);
  });
  uint64_t end = 0;
  for (const std::string& name : names) {
    const SafetensorsEntry& entry = entries.at(name);
    if (entry.begin != end) {
      reject(path,
             "tensor '" + name + "': data must follow the tensor before it without overlap or gap, at byte " +
                 std::to_string(end),
             std::to_string(entry.begin));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    reject(path, "the tensors must fill the " + std::to_string(data_bytes) + " bytes of data", std::to_string(end));
  }
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : mapping_(std::make_shared<Mapping>(path)) {
  mapping_->read_header();
}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

std::vector<std::string> SafetensorsFile::names() const { return mapping_->names; }
bool SafetensorsFile::contains(const std::string& name) const { return mapping_->entries.contains(name); }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return mapping_->metadata; }

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto found = mapping_->entries.find(name);
  if (found == mapping_->entries.end()) {
    throw std::invalid_argument(mapping_->path.string() + ": the file must hold tensor '" + name + "', got " +
                                std::to_string(mapping_->entries.size()) + " others");
  }
  const SafetensorsEntry& entry = found->second;
  if (entry.begin == entry.end) return at::empty(entry.shape, entry.dtype);
  const char* from = mapping_->data + entry.begin;
  if (reinterpret_cast<uintptr_t>(from) % c10::elementSize(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.shape, entry.dtype);
    std::memcpy(copy.data_ptr(), from, entry.end - entry.begin);
    return copy;
  }
  return at::from_blob(
      const_cast<char*>(from), entry.shape, [mapping = mapping_](void*) {}, entry.dtype);
}

}  // namespace ghostshard::fsdp
