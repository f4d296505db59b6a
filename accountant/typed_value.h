// What an option's value must be before it is converted, the same for every program.
//
// Libraries that convert text take more than people mean: 010 for eight, 0x10 for sixteen, an empty text for "not
// given". A run would then do another thing than its ledger says, and a check that was asked for would not be done.
#pragma once

#include <string>
#include <string_view>

namespace ghostshard::accountant {

// The rule that the value breaks, as "must be …, got …"; empty if it breaks none. type: of the option, as CLI11 names
// it: text that begins with INT or UINT (decimal digits without a leading zero), FLOAT (a decimal number), or anything
// else. No value is empty.
std::string mistake_in_value(std::string_view type, const std::string& value);

}  // namespace ghostshard::accountant
