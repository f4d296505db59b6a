// Any bytes as an event, of a ledger's words or of dp_accounting's: read, or refused with a sentence. An event reads
// back from what is written of it, and its key tells it from others.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "accountant/dp_event.h"
#include "accountant/events.h"
#include "accountant/ledger/strict_json.h"

namespace acc = ghostshard::accountant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::optional<nlohmann::json> json;
  try {
    json = acc::parse_strictly({reinterpret_cast<const char*>(data), size}, size_t{1} << 20);
  } catch (const std::invalid_argument&) {
  }
  if (!json) return 0;
  try {
    const acc::Event event = acc::event_from_json(*json);
    const acc::Event again = acc::event_from_json(acc::to_json(event));
    if (event != again || acc::key_of(event) != acc::key_of(again)) std::abort();
  } catch (const std::invalid_argument&) {
  }
  try {
    for (const auto& [event, count] : acc::events_from_dp_accounting(*json)) {
      acc::require_valid(event);
      if (count < 0) std::abort();
    }
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
