#include "accountant/gaussian/truncated_poisson.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

using Real = long double;
constexpr double kSlack = 1e-12;       // relative, of a tail: see binomial_tail
constexpr double kLeastTail = 1e-300;  // of k <= n: none is 0
constexpr int64_t kMostTerms = 20'000'000;

// log(n!) less Stirling's formula. The next term of the series is below 1e-19 from 64 on; log(64!) is 205.
Real stirling_error(Real n) {
  if (n < 64)
    return std::lgamma(n + 1) - ((n + 0.5L) * std::log(n) - n + 0.5L * std::log(2 * std::numbers::pi_v<Real>));
  const Real s = 1 / (n * n);
  return (1 / 12.0L -
          s * (1 / 360.0L - s * (1 / 1260.0L - s * (1 / 1680.0L - s * (1 / 1188.0L - s * 691 / 360360.0L))))) /
         n;
}

// x·log(x/m) + m - x without cancellation (Loader 2000, "Fast and accurate computation of binomial probabilities").
Real deviance(Real x, Real m) {
  if (!(std::abs(x - m) < 0.1L * (x + m))) return x * std::log(x / m) + m - x;
  const Real v = (x - m) / (x + m);
  Real sum = (x - m) * v;
  Real term = 2 * x * v;
  for (int j = 1; j < 200; ++j) {
    term *= v * v;
    const Real next = sum + term / (2 * j + 1);
    if (next == sum) break;
    sum = next;
  }
  return sum;
}

// P(Binomial(n, q) = k), 0 < q < 1, 0 <= k <= n.
Real probability(Real n, Real q, Real k) {
  if (k == 0) return std::exp(n * std::log1p(-q));
  if (k == n) return std::exp(n * std::log(q));
  const Real exponent =
      stirling_error(n) - stirling_error(k) - stirling_error(n - k) - deviance(k, n * q) - deviance(n - k, n * (1 - q));
  return std::exp(exponent) * std::sqrt(n / (2 * std::numbers::pi_v<Real> * k * (n - k)));
}

// Chernoff, for tails whose terms are too many to be added: exp(-n·KL(k/n || q)).
double chernoff_tail(Real n, Real q, Real k) {
  if (!(k > n * q)) return 1;
  const Real exponent = deviance(k, n * q) + deviance(n - k, n * (1 - q));
  return std::min(1.0, static_cast<double>(std::exp(-exponent * (1 - 1e-9L))) * (1 + 1e-9) + kLeastTail);
}

// Terms from k on in this direction, from the first: each is its neighbour's times a quotient below 1.
Real sum_of_terms(Real n, Real q, Real k, bool upwards) {
  const Real odds = q / (1 - q);
  Real term = probability(n, q, k);
  Real sum = term;
  for (int64_t i = 0; i < kMostTerms && term > sum * 1e-22L; ++i) {
    if (upwards ? k >= n : k <= 0) break;
    term *= upwards ? (n - k) / (k + 1) * odds : k / (n - k + 1) / odds;
    k += upwards ? 1 : -1;
    sum += term;
  }
  return sum;
}

}  // namespace

// The first term errs by the roundings of its exponents, a few in long double and hardly above 1 where the tail counts;
// each further one by three more, so that some 1e5 terms err by 1e-13 of themselves. The terms beyond the last are
// below 1e-22 of the sum times their number: the quotients fall, and are below 1 - 1e-7 where the last one is so small.
TailBracket binomial_tail(int64_t n, double q, int64_t k) {
  if (k <= 0) return {1, 1};
  if (k > n) return {0, 0};
  if (q == 1) return {1, 1};
  const auto size = static_cast<Real>(n);
  const auto from = static_cast<Real>(k);
  const Real deviation = std::sqrt(size * q * (1 - static_cast<Real>(q)));
  if (!(deviation < 5e5L)) return {0, chernoff_tail(size, q, from)};
  const bool above = from > size * q;
  const auto sum = static_cast<double>(sum_of_terms(size, q, above ? from : from - 1, above));
  if (above) return {sum * (1 - kSlack), std::min(1.0, sum * (1 + kSlack) + kLeastTail)};
  return {std::max(0.0, 1 - sum * (1 + kSlack)), std::min(1.0, 1 - sum * (1 - kSlack))};
}

ComposedRelease truncated_release(const TruncatedPoissonGaussianEvent& event, Adjacency adjacency, int64_t others,
                                  double count) {
  if (adjacency == Adjacency::kReplaceOne)
    throw std::invalid_argument("truncated Poisson sampling must be accounted under zero-out or add-or-remove");
  const double q = event.q.value();
  const double sigma = event.sigma.value();
  const TailBracket tau = binomial_tail(others, q, event.cap);
  ComposedRelease release{{q, sigma}, count};
  if (tau.upper == 0) return release;
  const double kept_of_all = static_cast<double>(event.cap) / (static_cast<double>(others) + 1) *
                             binomial_tail(others + 1, q, event.cap + 1).upper * (1 + 1e-15);  // tau·p
  release.weight = (1 - tau.lower) * (1 + 1e-15);
  if (adjacency == Adjacency::kZeroOut) {
    release.alternatives = {{kept_of_all, {1.0, sigma}}};
    release.nothing = std::max(0.0, tau.upper * (1 + 1e-15) - kept_of_all * (1 - 4 * kSlack));
  } else {
    const double p = tau.lower > 0 ? std::min(1.0, kept_of_all / tau.lower * (1 + 1e-15)) : 1.0;
    release.alternatives = {{tau.upper, {p, sigma / 2}}};
  }
  return release;
}

}  // namespace ghostshard::accountant
