// What a rounding may lose where a number is too small for a double's digits.
#pragma once

namespace ghostshard::accountant {

// Below 2^-1022 a rounding errs by up to this, whatever is rounded: e^-800 becomes 0. So an upper end of what may be
// positive has some of it added to it, and a lower end taken off.
inline constexpr double kLeast = 0x1p-1074;

}  // namespace ghostshard::accountant
