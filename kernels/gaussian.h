// Gaussian noise whose every element is a pure function of (key, parameter, element index).
//
// ChaCha20 (RFC 8439). Block b of a parameter: nonce = parameter (32 bits, little endian) ‖ b >> 32 (64 bits, little
// endian), block counter = low 32 bits of b. Its 64 bytes give the elements 8b … 8b+7, four Box–Muller pairs of 128
// bits: pair k is the little-endian 64-bit words 2k (radius) and 2k+1 (angle) and gives the elements 8b+2k (cosine) and
// 8b+2k+1 (sine). The radius uses all 64 bits, so the tail reaches 9.4 sigma; 32 bits would end at 6.7. The bits are
// the same wherever it is computed: float32 arithmetic without contraction, polynomials of our own, and always whole
// blocks, whatever range is asked for. Noise and uniform words of one key and one number come from the same keystream:
// give each its own key.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace ghostshard::kernels {

using ChaChaKey = std::array<uint8_t, 32>;

// Keystream bytes from block `block` of (key, nonce); RFC 8439 section 2.4 with an all-zero plaintext. Throws
// std::invalid_argument if out reaches beyond block 2^32 − 1, where the counter would wrap around.
void chacha20_keystream(const ChaChaKey& key, const std::array<uint8_t, 12>& nonce, uint32_t block,
                        std::span<uint8_t> out);

// out[i] += scale · z(key, parameter, first + i). z is standard normal, independent over (parameter, element).
// Throws std::invalid_argument unless scale is finite and ≥ 0, and if first + size of out exceeds 2^64. Cost: at most 3
// ns per element and core.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, std::span<float> out);

// The uniform 64-bit words first, first+1, … of the same construction (8 words per block), as many as out holds. Throws
// std::invalid_argument if first + size of out exceeds 2^64.
void uniform_words(const ChaChaKey& key, uint32_t stream, uint64_t first, std::span<uint64_t> out);

}  // namespace ghostshard::kernels
