// Any bytes as a ledger: read, or refused with a sentence. What was read is written as it was read.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "accountant/ledger.h"
#include "tests/accountant/fuzz/hostile_ledger.h"

namespace acc = ghostshard::accountant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const acc::FileInMemory file;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string text = data[0] % 2 == 0 ? std::string(bytes) : acc::rechained(bytes);
  try {
    const acc::LedgerContents contents = acc::read_ledger(file.holding(text));
    if (contents.head.size() != 64 || !contents.header.is_object()) std::abort();
    for (const acc::LedgerEntry& entry : contents.entries)
      if (acc::event_from_json(acc::to_json(entry.event)) != entry.event || entry.sequence < 1) std::abort();
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
