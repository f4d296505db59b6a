#include "kernels/coded_weights/host_loops.h"

#include <array>

#include "kernels/host/vectorised.h"

namespace ghostshard::kernels {
namespace {

std::array<float, 256> table_of_float8() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) table[static_cast<size_t>(code)] = from_float8(static_cast<uint8_t>(code));
  return table;
}

}  // namespace

GHOSTSHARD_VECTORISED static void encode_int8(const float* weights, float scale, uint8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) codes[i] = encode_weight<WeightCode::kInt8>(weights[i], scale);
}

GHOSTSHARD_VECTORISED static void encode_float8(const float* weights, float scale, uint8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) codes[i] = encode_weight<WeightCode::kFloat8>(weights[i], scale);
}

GHOSTSHARD_VECTORISED static void decode_int8(const uint8_t* codes, float scale, float* weights, int64_t n) {
  for (int64_t i = 0; i < n; ++i) weights[i] = decode_weight<WeightCode::kInt8>(codes[i], scale);
}

GHOSTSHARD_VECTORISED static void decode_int8(const uint8_t* codes, float scale, uint16_t* weights, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_weight(decode_weight<WeightCode::kInt8>(codes[i], scale), weights[i]);
}

GHOSTSHARD_VECTORISED static void decode_table(const uint8_t* codes, const float* table, float scale, float* weights,
                                               int64_t n) {
  for (int64_t i = 0; i < n; ++i) weights[i] = table[codes[i]] * scale;
}

GHOSTSHARD_VECTORISED static void decode_table(const uint8_t* codes, const float* table, float scale, uint16_t* weights,
                                               int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_weight(table[codes[i]] * scale, weights[i]);
}

template <typename T>
static void decode_stretch_of(const uint8_t* codes, float scale, WeightCode code, T* weights, int64_t n) {
  if (code == WeightCode::kInt8) return decode_int8(codes, scale, weights, n);
  static const std::array<float, 256> kTable = table_of_float8();
  decode_table(codes, kTable.data(), scale, weights, n);
}

void encode_weight_stretch(const float* weights, WeightCode code, uint8_t* codes, float* scale, int64_t n) {
  const float largest = largest_magnitude(weights, n);
  if (code == WeightCode::kInt8) {
    *scale = scale_of_weights<WeightCode::kInt8>(largest);
    return encode_int8(weights, *scale, codes, n);
  }
  *scale = scale_of_weights<WeightCode::kFloat8>(largest);
  encode_float8(weights, *scale, codes, n);
}

void decode_weight_stretch(const uint8_t* codes, float scale, WeightCode code, float* weights, int64_t n) {
  decode_stretch_of(codes, scale, code, weights, n);
}

void decode_weight_stretch(const uint8_t* codes, float scale, WeightCode code, uint16_t* weights, int64_t n) {
  decode_stretch_of(codes, scale, code, weights, n);
}

}  // namespace ghostshard::kernels
