#include "accountant/types.h"

#include <sstream>

namespace ghostshard::accountant::detail {

void throw_out_of_range(const char* name, const char* rule, double value) {
  std::ostringstream message;
  message << name << ' ' << rule << ", got " << value;
  throw std::invalid_argument(message.str());
}

}  // namespace ghostshard::accountant::detail
