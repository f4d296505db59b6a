// The arithmetic is in box_muller_pair.h; this file is compiled without contraction (kernels/CMakeLists.txt).
#include "kernels/gaussian/box_muller.h"

#include "kernels/gaussian/box_muller_pair.h"
#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {

GHOSTSHARD_VECTORISED void box_muller(const uint32_t* __restrict words, float* __restrict z, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const NormalPair pair = normal_pair(words + 4 * i);
    z[2 * i] = pair.cosine;
    z[2 * i + 1] = pair.sine;
  }
}

}  // namespace ghostshard::kernels
