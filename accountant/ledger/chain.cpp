#include "accountant/ledger/chain.h"

#include <unistd.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "accountant/ledger/durable_file.h"
#include "accountant/ledger/sha256.h"
#include "accountant/ledger/strict_json.h"

namespace ghostshard::accountant {
namespace {

std::optional<nlohmann::json> parse_object(std::string_view line) {
  auto json = parse_strictly(line, kLongestLedgerLine);
  if (json && !json->is_object()) json.reset();
  return json;
}

// Throws std::invalid_argument with the rule.
void take_line(const nlohmann::json& json, int64_t number, std::string_view line, Chain& chain, const TakeLine& take) {
  const std::string previous = text_field(json, "previous");
  if (number > 1 && previous != chain.head)
    throw std::invalid_argument("previous must be the SHA-256 of the line before (" + chain.head + "), got \"" +
                                previous + "\": a line was changed, moved, inserted or taken out");
  const std::string hash = sha256_hex(line);
  take(json, number, hash);
  if (number == 1 && previous != kNoPrevious) throw std::invalid_argument("the header's previous must be 64 zeros");
  chain.head = hash;
}

}  // namespace

Chain read_chain(const char* kind, const std::filesystem::path& path, std::string_view bytes, const TakeLine& take,
                 const char* unbegun) {
  Chain chain;
  int64_t number = 0;
  const auto refuse = [&](const std::string& rule) {
    throw InvalidLedger(kind + (" " + path.string()) + ", line " + std::to_string(number) + ": " + rule);
  };
  for (size_t start = 0; start < bytes.size();) {
    const size_t end = bytes.find('\n', start);
    const bool complete = end != std::string_view::npos;
    const std::string_view line = bytes.substr(start, complete ? end - start : end);
    ++number;
    try {
      const std::optional<nlohmann::json> json = parse_object(line);
      if (!json && complete) throw std::invalid_argument("must be a JSON object");
      if (!json && number == 1)
        throw std::invalid_argument(std::string("must be a JSON object, it was cut short") + unbegun);
      if (!json) {
        chain.dropped_partial_line = true;
        break;
      }
      take_line(*json, number, line, chain, take);
    } catch (const std::exception& error) {
      refuse(error.what());
    }
    chain.last_lacks_newline = !complete;
    if (!complete) break;
    start = end + 1;
    chain.complete_bytes = start;
  }
  if (number == 0) {
    number = 1;
    refuse(std::string("must be a header, the file is empty") + unbegun);
  }
  return chain;
}

void mend_tail(int descriptor, const std::filesystem::path& path, const Chain& chain) {
  if (chain.dropped_partial_line) {
    if (::ftruncate(descriptor, static_cast<off_t>(chain.complete_bytes)) != 0) throw_system_error("truncate", path);
  } else if (chain.last_lacks_newline) {
    write_all(descriptor, "\n", path);
  }
}

std::string chained_line_text(const nlohmann::json& line, const char* what) {
  std::string text = exact_json_text(line, what);
  try {
    (void)parse_strictly(text, kLongestLedgerLine);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(what) + ": " + error.what());
  }
  return text;
}

std::string text_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t count_field(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = json.at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int64_t>::max())
    throw std::invalid_argument(std::string(key) + " must be a whole number >= 0, got " + value.dump());
  return value.get<int64_t>();
}

}  // namespace ghostshard::accountant
