#include "dp/run/build_id.h"

#include <torch/version.h>

#include "accountant/ledger.h"
#include "dp/run/source_digest.h"

namespace ghostshard::dp {

std::string build_id() {
  return std::string("ghostshard ") + accountant::kLibraryVersion + ", sources sha256:" + kSourceDigest +
         ", LibTorch " + TORCH_VERSION;
}

}  // namespace ghostshard::dp
