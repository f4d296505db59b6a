#include <stdexcept>

#include "accountant/accountant.h"
#include "accountant/engines/contour.h"
#include "accountant/engines/prv.h"
#include "accountant/engines/rdp.h"

namespace ghostshard::accountant {

std::unique_ptr<Accountant> make_accountant(const std::string& name, Adjacency adjacency) {
  if (name == "contour") return std::make_unique<ContourAccountant>(adjacency);
  if (name == "prv") return std::make_unique<PrvAccountant>(adjacency);
  if (name == "rdp") return std::make_unique<RdpAccountant>(adjacency);
  throw std::invalid_argument("accountant must be one of contour, prv, rdp; got \"" + name + '"');
}

}  // namespace ghostshard::accountant
