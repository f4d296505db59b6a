// Gaussian differential privacy (Dong, Roth, Su 2019, arXiv:1905.02383): a whole privacy curve as one number. Under
// mu-GDP no test distinguishes two neighbouring data sets better than N(0,1) from N(mu,1).
#pragma once

#include <utility>
#include <vector>

namespace ghostshard::accountant {

// The delta at which mu-GDP is (epsilon, delta)-DP, to about 1e-9 of its value; mu > 0, epsilon >= 0.
double gdp_delta(double mu, double epsilon);

// The smallest mu (to 1e-6, rounded up) whose curve lies on or above a run's curve at every epsilon between 0 and the
// largest given. So mu-GDP is a valid claim for every delta >= the smallest given. curve: points (epsilon, delta) at
// each of which the run is (epsilon, delta)-DP, in any order. Between points convexity in e^epsilon bounds the run's
// curve; below the first point the total variation that (epsilon, delta)-DP implies does (Kairouz, Oh, Viswanath 2015,
// arXiv:1311.0776). Points with an infinite epsilon are left out. +infinity if none is left, 0 if all epsilons are 0.
double pessimistic_gdp(std::vector<std::pair<double, double>> curve);

// The largest true positive rate that a test with this false positive rate can have, given the curve: at every point
// TPR <= e^epsilon·FPR + delta and TPR <= 1 - e^-epsilon·(1 - FPR - delta) (Kairouz et al., Theorem 2.4).
double membership_bound(const std::vector<std::pair<double, double>>& curve, double false_positive_rate);

}  // namespace ghostshard::accountant
