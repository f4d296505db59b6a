#include "fsdp/broadcast_text.h"

#include <cstring>

namespace ghostshard::fsdp {

std::string broadcast_text(Mesh& mesh, const std::string& text) {
  if (mesh.world_size() == 1) return text;
  const at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  mesh.control().broadcast(size, 0);
  const auto bytes = static_cast<size_t>(size.item<int64_t>());
  if (bytes == 0) return {};
  const at::Tensor words = at::zeros({static_cast<int64_t>((bytes + 7) / 8)}, at::kLong);
  if (mesh.rank() == 0) std::memcpy(words.data_ptr<int64_t>(), text.data(), bytes);
  mesh.control().broadcast(words, 0);
  return {reinterpret_cast<const char*>(words.const_data_ptr<int64_t>()), bytes};
}

}  // namespace ghostshard::fsdp
