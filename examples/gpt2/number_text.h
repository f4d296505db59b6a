#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace ghostshard::gpt2 {

// format: one conversion of printf for a double.
inline std::string number_text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// With four digits behind the point, rounded up: an epsilon is not shown as less than it is.
inline std::string epsilon_text(double epsilon) { return number_text("%.4f", std::ceil(1e4 * epsilon) / 1e4); }

}  // namespace ghostshard::gpt2
