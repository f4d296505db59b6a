#include "accountant/prv.h"

#include <stdexcept>

#include "accountant/sampled_gaussian.h"

namespace ghostshard::accountant {

void PrvAccountant::admit(const Event& event) { (void)sampled_gaussian(event, adjacency(), name()); }

EpsilonBound PrvAccountant::bound_epsilon(Delta, Effort) const { throw std::logic_error("not implemented"); }

DeltaBound PrvAccountant::bound_delta(Epsilon, Effort) const { throw std::logic_error("not implemented"); }

std::unique_ptr<Accountant> PrvAccountant::clone() const { return std::make_unique<PrvAccountant>(*this); }

}  // namespace ghostshard::accountant
