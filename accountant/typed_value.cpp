#include "accountant/typed_value.h"

#include <charconv>
#include <system_error>

namespace ghostshard::accountant {
namespace {

constexpr size_t kMostDigits = 18;  // of every 64-bit number

std::string mistake_in_whole_number(const std::string& value) {
  const std::string digits = value.substr(value.starts_with('-') ? 1 : 0);
  const std::string got = ", got " + value;
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos)
    return "must be a whole number in decimal digits" + got;
  if (digits.size() > 1 && digits[0] == '0') return "must be a whole number without leading zeros" + got;
  return digits.size() <= kMostDigits ? "" : "must be a whole number of at most 18 digits" + got;
}

std::string mistake_in_number(const std::string& value) {
  const char* begin = value.data() + (value.starts_with('+') ? 1 : 0);
  const char* end = value.data() + value.size();
  double number = 0;
  const auto [stop, error] = std::from_chars(begin, end, number);
  const bool is_number = error != std::errc::invalid_argument && stop == end;
  return is_number ? "" : "must be a decimal number, got " + value;
}

}  // namespace

std::string mistake_in_value(std::string_view type, const std::string& value) {
  if (value.empty()) return "must not be empty: leave the option out, or give it a value";
  if (type.starts_with("INT") || type.starts_with("UINT")) return mistake_in_whole_number(value);
  if (type.starts_with("FLOAT")) return mistake_in_number(value);
  return "";
}

}  // namespace ghostshard::accountant
