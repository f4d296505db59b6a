// Any bytes as a report of a ledger: compared, or refused with a sentence. The ledger has one release that closed forms
// bound, so that a run takes no more than the report's own curves do.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "accountant/ledger/strict_json.h"
#include "accountant/report_verify.h"

namespace acc = ghostshard::accountant;

namespace {

acc::LedgerContents one_release() {
  acc::LedgerContents contents;
  contents.header = {{"type", "header"},
                     {"schema", acc::kLedgerSchema},
                     {"adjacency", "zero-out"},
                     {"run_id", "run 7"},
                     {"unit_of_privacy", "document"},
                     {"units", 2560},
                     {"previous", std::string(64, '0')}};
  contents.header_hash = std::string(64, 'a');
  contents.head = std::string(64, 'b');
  contents.entries = {{1, 0, 0, acc::GaussianEvent{acc::NoiseMultiplier(5)}, contents.head}};
  return contents;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const acc::LedgerContents ledger = one_release();
  try {
    const auto report = acc::parse_strictly({reinterpret_cast<const char*>(data), size}, size_t{1} << 20);
    if (!report) return 0;
    for (const acc::Finding& finding : acc::verify_report(ledger, *report))
      if (finding.what.empty()) std::abort();
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
