// Gaussian differential privacy (Dong, Roth, Su 2019, arXiv:1905.02383): a whole privacy curve as one number. mu-GDP:
// no test tells two neighbouring data sets apart better than N(0,1) from N(mu,1).
#pragma once

#include <utility>
#include <vector>

namespace ghostshard::accountant {

// delta at which mu-GDP is (epsilon, delta)-DP; mu > 0, epsilon >= 0. To about 1e-9 of its value.
double gdp_delta(double mu, double epsilon);

// The smallest mu (to 1e-6, rounded up) whose curve lies on or above a run's curve at every epsilon between 0 and the
// largest given, so that mu-GDP is a valid claim for every delta >= the smallest given. curve: points (epsilon, delta)
// at each of which the run is (epsilon, delta)-DP, in any order. Between points the run's curve is bounded by
// convexity in e^epsilon, below the first by what (epsilon, delta)-DP implies for the total variation (Kairouz, Oh,
// Viswanath 2015, arXiv:1311.0776). Points with an infinite epsilon are left out; +infinity where none is left, 0
// where all epsilons are 0.
double pessimistic_gdp(std::vector<std::pair<double, double>> curve);

// The largest true positive rate that a test with this false positive rate can have, given the curve: at every point
// TPR <= e^epsilon·FPR + delta and TPR <= 1 - e^-epsilon·(1 - FPR - delta) (Kairouz et al., Theorem 2.4).
double membership_bound(const std::vector<std::pair<double, double>>& curve, double false_positive_rate);

}  // namespace ghostshard::accountant
