// Any bytes as a report of a ledger: compared, or refused with a sentence. Nothing was released in the ledger, so that
// no engine computes and a run takes no more than reading and comparing do. hostile_test.cpp has reports of releases.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "accountant/ledger/strict_json.h"
#include "accountant/report_verify.h"

namespace acc = ghostshard::accountant;

namespace {

acc::LedgerContents nothing_released() {
  acc::LedgerContents contents;
  contents.header = {{"type", "header"},
                     {"schema", acc::kLedgerSchema},
                     {"adjacency", "zero-out"},
                     {"run_id", "run 7"},
                     {"unit_of_privacy", "document"},
                     {"units", 2560},
                     {"previous", std::string(64, '0')}};
  contents.head = contents.header_hash = std::string(64, 'a');
  return contents;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const acc::LedgerContents ledger = nothing_released();
  try {
    const auto report = acc::parse_strictly({reinterpret_cast<const char*>(data), size}, size_t{1} << 20);
    if (!report) return 0;
    for (const acc::Finding& finding : acc::verify_report(ledger, *report))
      if (finding.what.empty()) std::abort();
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
