#include "accountant/accountant.h"

#include <stdexcept>

#include "accountant/rdp.h"

namespace ghostshard::accountant {

std::unique_ptr<Accountant> make_accountant(const std::string& name, Adjacency adjacency) {
  if (name == "rdp") return std::make_unique<RdpAccountant>(adjacency);
  throw std::invalid_argument("accountant must be one of rdp; got \"" + name + '"');
}

}  // namespace ghostshard::accountant
