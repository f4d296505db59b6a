#include "accountant/ledger/strict_json.h"

#include <set>
#include <vector>

namespace ghostshard::accountant {
namespace {

using nlohmann::json;

// Called by the parser as it goes: what it refuses is never built.
class Refusals {
 public:
  void see(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (keys_.size() == kDeepestJson)
          throw std::invalid_argument("JSON must not be nested deeper than " + std::to_string(kDeepestJson));
        keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second)
          throw std::invalid_argument("a JSON object must have each key once, got " + parsed.dump(-1, ' ', true) +
                                      " twice");
        break;
      case json::parse_event_t::value:
        break;
    }
  }

 private:
  std::vector<std::set<std::string>> keys_;  // of each open object; an array has none
};

}  // namespace

std::optional<json> parse_strictly(std::string_view text, size_t longest) {
  if (text.size() > longest)
    throw std::invalid_argument("JSON must be at most " + std::to_string(longest) + " bytes long, got " +
                                std::to_string(text.size()));
  Refusals refusals;
  json parsed = json::parse(
      text.begin(), text.end(),
      [&](int, json::parse_event_t event, const json& value) {
        refusals.see(event, value);
        return true;
      },
      /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return std::nullopt;
  return parsed;
}

}  // namespace ghostshard::accountant
