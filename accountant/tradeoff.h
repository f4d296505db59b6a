// What a run's guarantee means for somebody who tests or guesses: the trade-off curve, from above.
//
// (eps, delta) in both directions bounds every test between two neighbours (Dong, Roth, Su 2022, arXiv:1905.02383,
// Prop. 2.12): TPR <= e^eps·FPR + delta and TPR <= 1 - e^-eps·(1 - FPR - delta), for each eps >= 0. The least of these
// over eps is the trade-off curve itself, symmetric in the two neighbours.
//
// The same number bounds reconstruction (Hayes et al. 2023, arXiv:2302.07225, Thm. 2): somebody who would guess a
// unit's content with probability at most `prior` without the outputs guesses it with at most that TPR at FPR = prior.
#pragma once

#include "accountant/accountant.h"

namespace ghostshard::accountant {

struct TestPower {
  double at_most;  // true positive rate, or probability of a right guess; 1 if nothing better is known
  double epsilon;  // where the bound was found
  double delta;    // the accountant's upper end there
};

// The largest true positive rate of any test of this false positive rate. Throws std::invalid_argument unless
// 0 < false_positive_rate < 1.
TestPower most_powerful_test(const Accountant& accountant, double false_positive_rate);

}  // namespace ghostshard::accountant
