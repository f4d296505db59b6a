// Noise as the tests draw it: from a fixed key, on the device under test.
#pragma once

#include <numeric>
#include <vector>

#include "kernels/gaussian_tensor.h"
#include "tests/kernels/backend.h"

namespace ghostshard::kernels {

// The bytes first, first + 1, …
inline ChaChaKey counting_key(uint8_t first = 0) {
  ChaChaKey key;
  std::iota(key.begin(), key.end(), first);
  return key;
}

inline std::vector<float> gaussian(uint32_t parameter, uint64_t first, size_t count, float scale = 1) {
  const at::Tensor out = at::zeros({static_cast<int64_t>(count)}, backend::device());
  add_gaussian(counting_key(), parameter, first, scale, out);
  const at::Tensor here = out.cpu();
  return {here.const_data_ptr<float>(), here.const_data_ptr<float>() + count};
}

}  // namespace ghostshard::kernels
