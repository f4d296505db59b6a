#include "accountant/contour.h"

#include <stdexcept>

#include "accountant/sampled_gaussian.h"

namespace ghostshard::accountant {

void ContourAccountant::admit(const Event& event) { (void)sampled_gaussian(event, adjacency(), name()); }

EpsilonBound ContourAccountant::bound_epsilon(Delta, Effort) const { throw std::logic_error("not implemented"); }

DeltaBound ContourAccountant::bound_delta(Epsilon, Effort) const { throw std::logic_error("not implemented"); }

std::unique_ptr<Accountant> ContourAccountant::clone() const { return std::make_unique<ContourAccountant>(*this); }

}  // namespace ghostshard::accountant
