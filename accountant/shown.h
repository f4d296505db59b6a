// Numbers in refusals: with six digits 1.0000000002 is no reason why something is not 1.
#pragma once

#include <string>

namespace ghostshard::accountant {

// The shortest text that reads back as the number.
std::string shown(double value);

}  // namespace ghostshard::accountant
