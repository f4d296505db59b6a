#include "accountant/shown.h"

#include <array>
#include <charconv>

namespace ghostshard::accountant {

std::string shown(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace ghostshard::accountant
