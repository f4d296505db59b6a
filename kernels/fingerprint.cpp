#include "kernels/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels {
namespace {

// Odd constants without structure: the fractional parts of the square roots of 2, 3, 5 and 7.
constexpr uint64_t kFactors[4] = {0x6a09e667f3bcc909, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1};

// Four independent chains. Each step is a bijection of the chain's state and of the word, so a single changed word
// cannot vanish.
class Mixer {
 public:
  void add(uint64_t word) { take(lane_++ & 3, word); }
  void add(const at::Tensor& x) {
    if (!x.is_contiguous() && x.dim() == 2 && x.stride(1) == 1) {
      for (int64_t t = 0; t < x.size(0); ++t) add(x.select(0, t));
      return;
    }
    require(x.is_contiguous() && x.device().is_cpu(), "fingerprint: rows must be contiguous and on the CPU");
    const auto* bytes = static_cast<const unsigned char*>(x.const_data_ptr());
    const auto size = static_cast<size_t>(x.nbytes());
    size_t at = 0;
    for (; at + 32 <= size; at += 32) {
      uint64_t words[4];
      std::memcpy(words, bytes + at, sizeof words);
      for (size_t lane = 0; lane < 4; ++lane) take(lane, words[lane]);
    }
    for (; at < size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min<size_t>(8, size - at));
      add(word);
    }
  }
  uint64_t finish() const {
    uint64_t whole = 0;
    for (const uint64_t state : states_) {
      whole = (whole ^ state) * kFactors[0];
      whole ^= whole >> 29;
    }
    return whole;
  }

 private:
  void take(size_t lane, uint64_t word) { states_[lane] = std::rotl((states_[lane] ^ word) * kFactors[lane], 29); }

  uint64_t states_[4] = {1, 2, 3, 4};
  size_t lane_ = 0;
};

}  // namespace

uint64_t fingerprint(const at::Tensor& a, const at::Tensor& g, const Segments& segments) {
  Mixer mixer;
  const bool on_device = device::runs_on_device(a);
  for (const at::Tensor* rows : {&a, &g}) {
    for (const int64_t extent : rows->sizes()) mixer.add(static_cast<uint64_t>(extent));
    if (!on_device) mixer.add(*rows);
  }
  if (on_device) mixer.add(on_device::sum_of_bits(a, g));
  for (int64_t u = 0; u < segments.units(); ++u) mixer.add(static_cast<uint64_t>(segments.begin(u)));
  return mixer.finish();
}

}  // namespace ghostshard::kernels
