// JSON from somebody else's hands: a ledger, a report, facts.
//
// The library's parser keeps the last of two equal keys, so that another reader may see another value in the same
// bytes; and what it reads at any depth, it prints and compares by recursion. Here both are refused.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace ghostshard::accountant {

inline constexpr int kDeepestJson = 64;                            // objects and arrays inside each other
inline constexpr size_t kLongestLedgerLine = size_t{16} << 20;     // bytes
inline constexpr size_t kLongestJsonDocument = size_t{256} << 20;  // bytes: a report, facts

// Nothing if the text is no JSON. Throws std::invalid_argument with the rule if it is longer than `longest`, nested
// deeper than kDeepestJson, or has a key twice in one object.
std::optional<nlohmann::json> parse_strictly(std::string_view text, size_t longest);

}  // namespace ghostshard::accountant
