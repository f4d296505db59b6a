#include "dp/run/build_id.h"

#include <torch/version.h>

#include "accountant/ledger.h"
#include "dp/run/source_digest.h"

namespace ghostshard::dp {

std::string build_id() {
  std::string id = accountant::kLibraryVersion;
  id.append(", sources sha256:").append(kSourceDigest).append(", LibTorch ").append(TORCH_VERSION);
  return id;
}

}  // namespace ghostshard::dp
