// The dtype names of the safetensors format that map onto torch's.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ghostshard::fsdp {

inline constexpr std::pair<std::string_view, at::ScalarType> kSafetensorsDtypes[] = {
    {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16}, {"F64", at::kDouble}, {"I64", at::kLong},
    {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},       {"U8", at::kByte},    {"BOOL", at::kBool}};

inline std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const auto& [known, type] : kSafetensorsDtypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

inline std::optional<std::string> name_of(at::ScalarType type) {
  for (const auto& [name, known] : kSafetensorsDtypes) {
    if (known == type) return std::string(name);
  }
  return std::nullopt;
}

// The limit of the reference implementation.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;

}  // namespace ghostshard::fsdp
