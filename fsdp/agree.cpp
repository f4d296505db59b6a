#include "fsdp/agree.h"

#include <algorithm>
#include <cstring>

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
  } catch (const std::invalid_argument& error) {
    outcome = kCallersMistake, message = error.what();
  } catch (const c10::ValueError& error) {
    outcome = kCallersMistake, message = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    outcome = kFailed, message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    outcome = kFailed, message = error.what();
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

}  // namespace ghostshard::fsdp
