#include "accountant/cli/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ghostshard::accountant::cli {
namespace {

constexpr int64_t kLargestExactCount = int64_t{1} << 53;

double plain_number(const std::string& option, const std::string& text, const std::string& whole) {
  double value = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc::result_out_of_range)
    throw std::invalid_argument(option + " must be a number that a double can hold, got \"" + whole + '"');
  if (error != std::errc() || stop != end)
    throw std::invalid_argument(option + " must be a number, got \"" + whole + '"');
  return value;
}

std::string rounded(double value, int digits, bool up) {
  if (!std::isfinite(value)) return value > 0 ? "infinity" : "not a number";
  const double scale = std::pow(10.0, digits);
  const double whole = up ? std::ceil(value * scale) : std::floor(value * scale);
  char text[400];
  // The product may be rounded to a whole number on the wrong side of the value: then one more.
  for (const double more : {0.0, up ? 1.0 : -1.0}) {
    std::snprintf(text, sizeof text, "%.*f", digits, std::abs(value) < 1e15 / scale ? (whole + more) / scale : value);
    const double shown = std::strtod(text, nullptr);
    if (up ? shown >= value : shown <= value) break;
  }
  return text;
}

}  // namespace

double parse_number(const std::string& option, const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return plain_number(option, text, text);
  return plain_number(option, text.substr(0, slash), text) / plain_number(option, text.substr(slash + 1), text);
}

std::vector<double> parse_numbers(const std::string& option, const std::string& text) {
  std::vector<double> all;
  for (size_t start = 0; !text.empty() && start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    all.push_back(parse_number(option, text.substr(start, comma - start)));
    start = comma + 1;
  }
  return all;
}

int64_t parse_count(const std::string& option, const std::string& text) {
  if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0123456789") == std::string::npos)
    throw std::invalid_argument(option + " must be a whole number without leading zeros, got \"" + text + '"');
  int64_t whole = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  const bool is_whole = stop == text.data() + text.size();
  if (is_whole && error == std::errc() && whole >= 0 && whole <= kLargestExactCount) return whole;
  if (is_whole && !text.empty() && text[0] != '-')
    throw std::invalid_argument(option + " must be at most 2^53, got \"" + text + '"');
  const std::string rule = option + " must be a whole number >= 0, got \"" + text + '"';
  double value = -1;
  try {
    value = plain_number(option, text, text);
  } catch (const std::invalid_argument&) {
    throw std::invalid_argument(rule);
  }
  if (!(value >= 0 && value == std::floor(value))) throw std::invalid_argument(rule);
  if (value > static_cast<double>(kLargestExactCount))
    throw std::invalid_argument(option + " must be at most 2^53, got \"" + text + '"');
  return static_cast<int64_t>(value);
}

std::string exact(double value) {
  return std::isfinite(value) ? nlohmann::json(value).dump() : (value > 0 ? "infinity" : "not a number");
}

std::string up(double value, int digits) { return rounded(value, digits, true); }
std::string down(double value, int digits) { return rounded(value, digits, false); }

}  // namespace ghostshard::accountant::cli
