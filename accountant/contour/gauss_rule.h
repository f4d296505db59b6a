// The Gauss rule of a measure of finitely many masses, and by how much any rule misses its moments.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ghostshard::accountant {

struct Mass {
  long double x;  // in [-1, 1]
  double weight;  // > 0
};

// So many masses, positive and inside the hull of the given ones, with the same integrals of all polynomials of degree
// 2·size - 1 but for rounding. Nothing is proven of that: `misses` measures it. Fewer if the measure has fewer.
std::vector<Mass> gauss_rule(std::span<const Mass> measure, size_t size);

// |∫ T_m over the measure - over the rule| for Chebyshev's polynomials T_0, …, T_degree, rounded up. of_place: by how
// many units of long double each x may be wrong.
std::vector<double> misses(std::span<const Mass> measure, std::span<const Mass> rule, size_t degree, double of_place);

}  // namespace ghostshard::accountant
