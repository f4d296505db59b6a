#include "kernels/quantised_moments/host_loops.h"

#include <array>

#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {
namespace {

template <CodeSign kSign>
std::array<float, 256> make_table() {
  std::array<float, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    table[static_cast<size_t>(byte)] = decode_moment<kSign>(static_cast<uint8_t>(byte));
  }
  return table;
}

const float* decoded(CodeSign sign) {
  static const std::array<float, 256> kSignedTable = make_table<CodeSign::kSigned>();
  static const std::array<float, 256> kUnsignedTable = make_table<CodeSign::kUnsigned>();
  return sign == CodeSign::kSigned ? kSignedTable.data() : kUnsignedTable.data();
}

}  // namespace

GHOSTSHARD_VECTORISED static void decode_all(const uint8_t* __restrict codes, const float* __restrict table,
                                             float scale, float* __restrict values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = table[codes[i]] * scale;
}

GHOSTSHARD_VECTORISED static void encode_signed(const float* __restrict values, float scale, uint8_t* __restrict codes,
                                                int64_t n) {
  for (int64_t i = 0; i < n; ++i) codes[i] = encode_moment<CodeSign::kSigned>(values[i], scale);
}

GHOSTSHARD_VECTORISED static void encode_unsigned(const float* __restrict values, float scale,
                                                  uint8_t* __restrict codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) codes[i] = encode_moment<CodeSign::kUnsigned>(values[i], scale);
}

GHOSTSHARD_VECTORISED void adamw_elements(const AdamWTerms& terms, float* __restrict weights,
                                          const float* __restrict gradient, float* __restrict first,
                                          float* __restrict second, int64_t n) {
  const AdamWTerms t = terms;
  for (int64_t i = 0; i < n; ++i) adamw_element(t, gradient[i], weights[i], first[i], second[i]);
}

GHOSTSHARD_VECTORISED void adamw_halves(const AdamWTerms& terms, float* __restrict weights,
                                        const float* __restrict gradient, uint16_t* __restrict first,
                                        uint16_t* __restrict second, uint32_t stream, uint64_t first_element,
                                        int64_t n) {
  const AdamWTerms t = terms;
  for (int64_t i = 0; i < n; ++i) {
    adamw_element_of_halves(t, gradient[i], weights[i], first[i], second[i],
                            rounding_bits(stream, first_element + static_cast<uint64_t>(i)));
  }
}

void encode_stretch(const float* values, CodeSign sign, uint8_t* codes, float* scale, int64_t n) {
  *scale = largest_magnitude(values, n);
  sign == CodeSign::kSigned ? encode_signed(values, *scale, codes, n) : encode_unsigned(values, *scale, codes, n);
}

void decode_stretch(const uint8_t* codes, float scale, CodeSign sign, float* values, int64_t n) {
  decode_all(codes, decoded(sign), scale, values, n);
}

void adamw_stretch(const AdamWTerms& terms, CodeSign second_sign, float* weights, const float* gradient, uint8_t* first,
                   float* first_scale, uint8_t* second, float* second_scale, int64_t n) {
  alignas(64) float m[kStretch], v[kStretch];
  decode_stretch(first, *first_scale, CodeSign::kSigned, m, n);
  decode_stretch(second, *second_scale, second_sign, v, n);
  adamw_elements(terms, weights, gradient, m, v, n);
  encode_stretch(m, CodeSign::kSigned, first, first_scale, n);
  encode_stretch(v, second_sign, second, second_scale, n);
}

}  // namespace ghostshard::kernels
