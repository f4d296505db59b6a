// Numbers as texts with a decimal point, whatever the locale: printf() and strtod() would follow that of the process,
// which a program that uses the library from Python may have set.
#pragma once

#include <array>
#include <charconv>
#include <string>
#include <string_view>

namespace ghostshard::accountant {

// As printf's %.<digits>f (std::chars_format::fixed) and %.<digits>g (general) write it where no locale is set.
inline std::string plain_number(double value, std::chars_format format, int digits) {
  std::array<char, 512> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return {text.data(), written.ptr};
}

// The number that a text as above stands for; 0 if a double holds none such.
inline double number_of_plain(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace ghostshard::accountant
