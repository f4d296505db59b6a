// Numbers as a person types them. Parsing throws std::invalid_argument with the option, the rule and the text given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ghostshard::accountant::cli {

// "1.1", "1e-5", or a fraction such as "256/60000". NaN and infinity pass: the checked types refuse them by name.
double parse_number(const std::string& option, const std::string& text);

// Comma-separated; none in an empty text.
std::vector<double> parse_numbers(const std::string& option, const std::string& text);

// A whole number >= 0: "1000", "1e5".
int64_t parse_count(const std::string& option, const std::string& text);

// The shortest text that reads back as the number: 1.0269848448.
std::string exact(double value);
// The number rounded up, or down, to so many digits after the point.
std::string up(double value, int digits);
std::string down(double value, int digits);

}  // namespace ghostshard::accountant::cli
