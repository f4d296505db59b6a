// Numbers as a person types them. Everything throws std::invalid_argument naming the option, the rule and what came.
#pragma once

#include <cstdint>
#include <string>

namespace ghostshard::accountant::cli {

// "1.1", "1e-5", or a fraction such as "256/60000". NaN and infinity are left to the checked types, which refuse them
// by name.
double parse_number(const std::string& option, const std::string& text);

// A whole number >= 0: "1000", "1e5".
int64_t parse_count(const std::string& option, const std::string& text);

// Shortest text that reads back as the number: 1.0269848448.
std::string exact(double value);
// At least as large, or at most as large, as the number, with so many digits after the point.
std::string up(double value, int digits);
std::string down(double value, int digits);

}  // namespace ghostshard::accountant::cli
