#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace ghostshard::gpt2 {

// format: one conversion of printf for a double.
inline std::string number_text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// With so many digits behind the point, rounded up: an epsilon is not shown as less than it is. 1.1 stays 1.1, though
// its product with a power of ten may lie above the whole number.
inline std::string epsilon_text(double epsilon, int digits = 4) {
  const std::string format = "%." + std::to_string(digits) + "f", nearest = number_text(format.c_str(), epsilon);
  if (std::strtod(nearest.c_str(), nullptr) >= epsilon) return nearest;
  return number_text(format.c_str(), epsilon + std::pow(10.0, -digits));
}

}  // namespace ghostshard::gpt2
