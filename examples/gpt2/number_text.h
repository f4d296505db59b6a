#pragma once

#include <cstdio>
#include <string>

namespace ghostshard::gpt2 {

// format: one conversion of printf for a double.
inline std::string number_text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace ghostshard::gpt2
