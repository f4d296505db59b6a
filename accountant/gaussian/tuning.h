// What the best of K runs reveals, K drawn at random: tuning of hyper-parameters (Papernot, Steinke 2022,
// arXiv:2110.03620).
//
// Q is one run, D(lambda) its Rényi divergence of order lambda, the larger of both directions. Its output has a score;
// Q is done K times and the output of the best score is released. f(x) = E[x^K]. By their Lemma 7
//   Σ_y P_best(y)^lambda·P'_best(y)^(1-lambda) <= e^((lambda-1)·D(lambda))·sup f'(x)^lambda·f'(x')^(1-lambda)
// over all x, x' that are one event's probabilities under Q and Q', y over what is released for K >= 1.
//
// Theorem 2. K truncated negative binomial of shape h > -1 and 0 < g < 1. For every lambda > 1 and lambda^ >= 1
//   D_best(lambda) <= D(lambda) + (1+h)·((1 - 1/lambda^)·D(lambda^) + log(1/g)/lambda^) + log E[K]/(lambda-1),
//   E[K] = h·(1-g)/(g·(1 - g^h)), for h = 0 (1/g - 1)/log(1/g).
// Theorem 6. K Poisson of mean m. If Q is (epsilon^, delta^)-DP and e^epsilon^ <= 1 + 1/(lambda-1), then
//   D_best(lambda) <= D(lambda) + m·delta^ + log m/(lambda-1).
// That leaves out what is released for K = 0, which adds P(K = 0) = e^-m to the sum above: it is added here, so that
// (lambda-1)·D_best <= log(e^-m + m·e^((lambda-1)·(D(lambda) + m·delta^))). Without it m < 1 would cost less than
// nothing.
#pragma once

#include "accountant/events.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// c·D_best(1 + c), rounded up; lambda^ and delta^ are the best of those on a mesh of orders. Throws
// std::invalid_argument for a run of which a release cannot be bounded under this adjacency, or has infinite losses
// (then D is infinite).
double tuning_log_moment(const TuningNegativeBinomialEvent& event, double c, Adjacency adjacency);
double tuning_log_moment(const TuningPoissonEvent& event, double c, Adjacency adjacency);

// The table of any mechanism with these moments.
LossCells tuning_losses(const Event& event, Adjacency adjacency);

}  // namespace ghostshard::accountant
