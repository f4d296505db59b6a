#include "dp/mechanism/bins.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "dp/mechanism/uniform_below.h"
#include "kernels/gaussian.h"

namespace ghostshard::dp {
namespace {

constexpr int64_t kChunk = 8192;  // units: their words, 64 KiB, stay in the cache

// A word that decides nothing comes with a probability below t/2^64: the unit's word in the next stream does then.
uint64_t bin_of(const kernels::ChaChaKey& key, uint64_t unit, uint64_t word, const UniformBelow& bins) {
  for (uint32_t stream = 1;; ++stream) {
    if (const auto bin = bins(word)) return *bin;
    kernels::uniform_words(key, stream, unit, std::span(&word, 1));
  }
}

}  // namespace

std::string to_string(Sampling sampling) { return sampling == Sampling::kPoisson ? "poisson" : "balls-in-bins"; }

Sampling sampling_from_string(const std::string& text) {
  for (const Sampling known : {Sampling::kPoisson, Sampling::kBallsInBins})
    if (text == to_string(known)) return known;
  throw std::invalid_argument("sampling must be poisson or balls-in-bins, got \"" + text + '"');
}

StepId BinPasses::pass_of(const StepId& step) const {
  if (step.step < first) {
    throw std::invalid_argument("a session's steps begin at " + std::to_string(first) + ", got step " +
                                std::to_string(step.step));
  }
  return {.step = first + (step.step - first) / steps * steps, .attempt = step.attempt};
}

std::vector<int64_t> BinPasses::units_of(const RunKey& key, const StepId& step, int64_t from, int64_t end) const {
  const StepId pass = pass_of(step);
  const auto bin = static_cast<uint64_t>(step.step - pass.step);
  kernels::ChaChaKey pass_key = key.derive(Purpose::kBins, pass);
  const UniformBelow bins(static_cast<uint64_t>(steps));
  std::vector<int64_t> drawn;
  std::vector<uint64_t> words(static_cast<size_t>(std::clamp<int64_t>(end - from, 0, kChunk)));
  for (int64_t start = from; start < end; start += kChunk) {
    const auto count = static_cast<size_t>(std::min(kChunk, end - start));
    kernels::uniform_words(pass_key, 0, static_cast<uint64_t>(start), std::span(words).first(count));
    for (size_t i = 0; i < count; ++i) {
      const auto unit = static_cast<uint64_t>(start) + i;
      if (bin_of(pass_key, unit, words[i], bins) == bin) drawn.push_back(start + static_cast<int64_t>(i));
    }
  }
  pass_key.fill(0);
  return drawn;
}

}  // namespace ghostshard::dp
