#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fsdp/durable_file.h"
#include "fsdp/safetensors.h"
#include "fsdp/safetensors/dtypes.h"

namespace ghostshard::fsdp {
namespace {

std::string header_text(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  const auto reject = [](const NamedTensor& tensor, const std::string& rule) {
    throw std::invalid_argument("write_safetensors: tensor '" + tensor.name + "' " + rule);
  };
  // In the order given: the layout of a file should not depend on how names sort.
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

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(tensors, metadata);
  DurableFile file(path);
  const uint64_t header_bytes = header.size();
  file.write(&header_bytes, sizeof(header_bytes));
  file.write(header.data(), header.size());
  for (const NamedTensor& named : tensors) file.write(named.tensor.const_data_ptr(), named.tensor.nbytes());
  file.commit();
}

}  // namespace ghostshard::fsdp
