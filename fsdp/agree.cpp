#include "fsdp/agree.h"

#include <algorithm>
#include <cstring>

#include "fsdp/failure.h"

namespace ghostshard::fsdp {
namespace {

enum Outcome : int64_t { kFine = 0, kFailed = 1, kCallersMistake = 2 };

constexpr int64_t kWords = 1 + 1024 / 8;  // the outcome, then at most 1024 bytes of text

}  // namespace

void agree(Mesh& mesh, const std::function<void()>& work) {
  Outcome outcome = kFine;
  std::string message;
  try {
    work();
  } catch (const std::exception&) {
    const Failure failure = current_failure();
    outcome = failure.callers_mistake ? kCallersMistake : kFailed, message = failure.sentence;
  }
  const at::Tensor mine = at::zeros({kWords}, at::kLong);
  auto* words = mine.data_ptr<int64_t>();
  words[0] = outcome;
  std::memcpy(words + 1, message.data(), std::min<size_t>(message.size(), 8 * (kWords - 1) - 1));
  const at::Tensor all = at::empty({mesh.world_size() * kWords}, at::kLong);
  mesh.control().all_gather(all, mine)->wait();
  if (outcome != kFine) throw AgreedFailure(message, outcome == kCallersMistake);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t* of_rank = all.const_data_ptr<int64_t>() + rank * kWords;
    if (of_rank[0] == kFine) continue;
    throw AgreedFailure("rank " + std::to_string(rank) + ": " + reinterpret_cast<const char*>(of_rank + 1),
                        of_rank[0] == kCallersMistake);
  }
}

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
