// Probabilities of intervals under N(0, 1), with a bound on their error.
#pragma once

namespace ghostshard::accountant {

struct Mass {
  double value = 0, error = 0;  // the true one lies in value ± error
};

// Of [a, b], a <= b.
Mass normal_mass(double a, double b);

}  // namespace ghostshard::accountant
