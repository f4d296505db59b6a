// A measure of finitely many masses in a square, and a few of them with other weights that have its moments.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ghostshard::accountant {

struct PairMass {
  long double x, y;  // in [-1, 1]
  double weight;     // > 0
};
struct Chosen {
  size_t index;   // of the measure
  double weight;  // > 0
};

// The products T_m(x)·T_n(y) of Chebyshev's polynomials with m/x + n/y <= 1; x, y >= 1.
struct Degrees {
  size_t x, y;
  size_t last_y(size_t m) const { return (x - m) * y / x; }  // for m <= x
  size_t products() const;                                   // how many
};

// At most degrees.products() masses with the same integrals of these products but for rounding: they exist
// (Tchakaloff), and are found by halving (Tchernychova, Lyons 2012, Caratheodory's theorem: groups of masses are
// reduced as if each were one). Nothing is proven of that: `pair_misses` measures it.
std::vector<Chosen> pair_rule(std::span<const PairMass> measure, const Degrees& degrees);

// |∫ T_m(x)·T_n(y) over the measure - over the rule|, rounded up, for m = 0, 1, … and n = 0, 1, … in each. of_place: by
// how many units of long double each place may be wrong.
std::vector<double> pair_misses(std::span<const PairMass> measure, std::span<const Chosen> rule, const Degrees& degrees,
                                double of_place);

}  // namespace ghostshard::accountant
