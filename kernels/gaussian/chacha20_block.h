// One block of the ChaCha20 keystream (RFC 8439 section 2.3) in 32-bit words: on a device, the bytes that OpenSSL gives
// on the host. Host and device compile the same text.
#pragma once

#include <cstdint>

#include "kernels/device/host_device.h"

namespace ghostshard::kernels {

// The key as little-endian words.
struct ChaChaKeyWords {
  uint32_t word[8];
};

GHOSTSHARD_HOST_DEVICE uint32_t rotate_left(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

GHOSTSHARD_HOST_DEVICE void quarter_round(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  a += b;
  d = rotate_left(d ^ a, 16);
  c += d;
  b = rotate_left(b ^ c, 12);
  a += b;
  d = rotate_left(d ^ a, 8);
  c += d;
  b = rotate_left(b ^ c, 7);
}

// Block `block` of a stream, in the layout of kernels/gaussian.h: the counter is the low half of the block's number,
// the nonce is the stream followed by the high half as 64 bits.
GHOSTSHARD_HOST_DEVICE void chacha20_block(const ChaChaKeyWords& key, uint32_t stream, uint64_t block,
                                           uint32_t (&out)[16]) {
  const uint32_t start[16] = {0x61707865u,
                              0x3320646eu,
                              0x79622d32u,
                              0x6b206574u,  // "expand 32-byte k"
                              key.word[0],
                              key.word[1],
                              key.word[2],
                              key.word[3],
                              key.word[4],
                              key.word[5],
                              key.word[6],
                              key.word[7],
                              static_cast<uint32_t>(block),
                              stream,
                              static_cast<uint32_t>(block >> 32),
                              0u};
  for (int i = 0; i < 16; ++i) out[i] = start[i];
  for (int i = 0; i < 10; ++i) {
    quarter_round(out[0], out[4], out[8], out[12]);
    quarter_round(out[1], out[5], out[9], out[13]);
    quarter_round(out[2], out[6], out[10], out[14]);
    quarter_round(out[3], out[7], out[11], out[15]);
    quarter_round(out[0], out[5], out[10], out[15]);
    quarter_round(out[1], out[6], out[11], out[12]);
    quarter_round(out[2], out[7], out[8], out[13]);
    quarter_round(out[3], out[4], out[9], out[14]);
  }
  for (int i = 0; i < 16; ++i) out[i] += start[i];
}

}  // namespace ghostshard::kernels
