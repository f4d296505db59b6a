// The values of --optimizer.
#pragma once

#include <string>
#include <vector>

namespace ghostshard::gpt2 {

inline constexpr const char* kAdamW = "adamw";
inline constexpr const char* kEightBits = "adamw8bit";
inline constexpr const char* kMuon = "muon";
inline constexpr const char* kSgd = "sgd";

inline std::vector<std::string> optimizer_names() { return {kAdamW, kEightBits, kMuon, kSgd}; }

}  // namespace ghostshard::gpt2
