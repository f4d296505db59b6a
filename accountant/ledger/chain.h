// Files of JSON lines in a hash chain: every line carries "previous", the SHA-256 in hex of the line before without its
// newline, and the first line 64 zeros. The ledger and the register of budgets are such files.
#pragma once

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace ghostshard::accountant {

// What a chained file holds breaks a rule: it was changed, or is none.
class InvalidLedger : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

inline constexpr const char* kNoPrevious = "0000000000000000000000000000000000000000000000000000000000000000";

struct Chain {
  std::string head;  // hash of the last line
  // A crash may cut the last line short. If it does not parse, it is dropped: it had not been permitted yet.
  bool dropped_partial_line = false;
  size_t complete_bytes = 0;        // up to and including the last newline
  bool last_lacks_newline = false;  // the last line parses, but its newline is missing
};

// Given a line (from 1), its number and its hash; throws std::invalid_argument with the rule that the line breaks.
using TakeLine = std::function<void(const nlohmann::json& line, int64_t number, const std::string& hash)>;

// Hands over the lines of a file's content in order. Throws InvalidLedger with kind ("ledger"), path, line and rule if
// a line is no object, breaks the chain or is not taken, or if there is none. unbegun: what to add if even the first
// line is not whole.
Chain read_chain(const char* kind, const std::filesystem::path& path, std::string_view bytes, const TakeLine& take,
                 const char* unbegun = "");

// Takes a partial last line out of a file, or ends its last line. The caller syncs.
void mend_tail(int descriptor, const std::filesystem::path& path, const Chain& chain);

// The line's text, which read_chain will take. std::invalid_argument, naming `what`, if there is none.
std::string chained_line_text(const nlohmann::json& line, const char* what);

// A text field, or nothing.
std::string text_field(const nlohmann::json& json, const char* key);
// A whole number >= 0; written by us it is never a float. std::invalid_argument otherwise.
int64_t count_field(const nlohmann::json& json, const char* key);

}  // namespace ghostshard::accountant
