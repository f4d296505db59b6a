#include "accountant/types.h"

#include "accountant/shown.h"

namespace ghostshard::accountant::detail {

void throw_out_of_range(const char* name, const char* rule, double value) {
  throw std::invalid_argument(std::string(name) + ' ' + rule + ", got " + shown(value));
}

}  // namespace ghostshard::accountant::detail
