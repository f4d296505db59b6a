#include "kernels/gaussian.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/gaussian/box_muller.h"

namespace ghostshard::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "keystream bytes are read as little-endian words");

constexpr uint64_t kBlockBytes = 64;
constexpr uint64_t kWordsPerBlock = 8;  // 64-bit words, and elements
constexpr uint64_t kCounterBlocks = uint64_t{1} << 32;
// Keystream and normals of one chunk stay in the first-level cache: 8 KiB and 4 KiB.
constexpr uint64_t kChunkBlocks = 128;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

void require_ok(int result, const char* call) {
  if (result != 1) {
    throw std::runtime_error(std::string("OpenSSL: ") + call + " failed");
  }
}

// One key's keystream.
class ChaCha20 {
 public:
  explicit ChaCha20(const ChaChaKey& key) : context_(EVP_CIPHER_CTX_new()) {
    if (!context_) {
      throw std::bad_alloc();
    }
    require_ok(EVP_EncryptInit_ex(context_.get(), EVP_chacha20(), nullptr, key.data(), nullptr), "EVP_EncryptInit_ex");
  }

  // Whole or part blocks from `block` on. The caller must not let the counter wrap around: OpenSSL would carry it into
  // the nonce, and that is another parameter's keystream.
  void keystream(const std::array<uint8_t, 12>& nonce, uint32_t block, std::span<uint8_t> out) {
    if (block != next_block_ || nonce != nonce_) {  // seeking takes as long as four blocks
      std::array<uint8_t, 16> iv;
      std::memcpy(iv.data(), &block, 4);
      std::memcpy(iv.data() + 4, nonce.data(), 12);
      require_ok(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, iv.data()), "EVP_EncryptInit_ex");
      nonce_ = nonce;
    }
    // After a part of a block, and at the counter's end, the next call seeks.
    next_block_ = out.size() % kBlockBytes == 0 ? block + out.size() / kBlockBytes : kNowhere;
    static constexpr std::array<uint8_t, kChunkBlocks * kBlockBytes> kZeros{};
    while (!out.empty()) {
      const size_t n = std::min(out.size(), kZeros.size());
      int written = 0;
      require_ok(EVP_EncryptUpdate(context_.get(), out.data(), &written, kZeros.data(), static_cast<int>(n)),
                 "EVP_EncryptUpdate");
      out = out.subspan(n);
    }
  }

  // Whole blocks of a stream with 64-bit block numbers, in the layout of gaussian.h.
  void blocks(uint32_t stream, uint64_t first_block, std::span<uint8_t> out) {
    while (!out.empty()) {
      const uint64_t until_wrap = kCounterBlocks - first_block % kCounterBlocks;
      const uint64_t count = std::min<uint64_t>(out.size() / kBlockBytes, until_wrap);
      std::array<uint8_t, 12> nonce;
      const uint64_t high = first_block / kCounterBlocks;
      std::memcpy(nonce.data(), &stream, 4);
      std::memcpy(nonce.data() + 4, &high, 8);
      keystream(nonce, static_cast<uint32_t>(first_block % kCounterBlocks), out.first(count * kBlockBytes));
      out = out.subspan(count * kBlockBytes);
      first_block += count;
    }
  }

 private:
  static constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();
  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context_;
  std::array<uint8_t, 12> nonce_{};
  uint64_t next_block_ = kNowhere;  // where the context stands
};

// Elements first, first+1, … up to `size` of a stream, in chunks of whole blocks: visit(32-bit words of the chunk,
// number of whole blocks, elements of its first block to leave out, elements wanted, elements done before).
template <typename Visit>
void for_each_chunk(const ChaChaKey& key, uint32_t stream, uint64_t first, uint64_t size, const Visit& visit) {
  if (size > 0 && first > std::numeric_limits<uint64_t>::max() - (size - 1)) {
    throw std::invalid_argument("Gaussian noise: first + count must be at most 2^64; got first = " +
                                std::to_string(first) + ", count = " + std::to_string(size));
  }
  alignas(64) std::array<uint32_t, kChunkBlocks * kBlockBytes / 4> words;
  ChaCha20 cipher(key);
  for (uint64_t done = 0; done < size;) {
    const uint64_t block = (first + done) / kWordsPerBlock;
    const uint64_t skipped = (first + done) % kWordsPerBlock;
    const uint64_t wanted = std::min(size - done, kChunkBlocks * kWordsPerBlock - skipped);
    const uint64_t blocks = (skipped + wanted + kWordsPerBlock - 1) / kWordsPerBlock;
    cipher.blocks(stream, block, {reinterpret_cast<uint8_t*>(words.data()), blocks * kBlockBytes});
    visit(words.data(), blocks, skipped, wanted, done);
    done += wanted;
  }
}

}  // namespace

void chacha20_keystream(const ChaChaKey& key, const std::array<uint8_t, 12>& nonce, uint32_t block,
                        std::span<uint8_t> out) {
  const uint64_t blocks = out.size() / kBlockBytes + (out.size() % kBlockBytes != 0);
  if (blocks > kCounterBlocks - block) {
    throw std::invalid_argument("chacha20_keystream: the 32-bit block counter must not come round; got block " +
                                std::to_string(block) + " and " + std::to_string(out.size()) + " bytes");
  }
  ChaCha20(key).keystream(nonce, block, out);
}

void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, std::span<float> out) {
  if (!(std::isfinite(scale) && scale >= 0)) {
    throw std::invalid_argument("add_gaussian: scale must be finite and >= 0; got " + std::to_string(scale));
  }
  alignas(64) std::array<float, kChunkBlocks * kWordsPerBlock> z;
  for_each_chunk(key, parameter, first, out.size(),
                 [&](const uint32_t* words, uint64_t blocks, uint64_t skipped, uint64_t wanted, uint64_t done) {
                   box_muller(words, z.data(), static_cast<int64_t>(blocks * kWordsPerBlock / 2));
                   float* __restrict to = out.data() + done;
                   const float* __restrict from = z.data() + skipped;
                   for (uint64_t i = 0; i < wanted; ++i) {
                     to[i] += scale * from[i];
                   }
                 });
}

void uniform_words(const ChaChaKey& key, uint32_t stream, uint64_t first, std::span<uint64_t> out) {
  for_each_chunk(key, stream, first, out.size(),
                 [&](const uint32_t* words, uint64_t, uint64_t skipped, uint64_t wanted, uint64_t done) {
                   std::memcpy(out.data() + done, words + 2 * skipped, wanted * sizeof(uint64_t));
                 });
}

}  // namespace ghostshard::kernels
