// See rdp.h for the identity that is integrated here. z = x/sigma throughout, so that the weight is the
// standard normal density, u = z/sigma - 1/(2 sigma²), and the integrand is analytic for |Im z| < pi·sigma.
#include "accountant/gaussian/sampled_gaussian.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kHalfLogTwoPi = 0.918938533204672741780329736406;

// ---------------------------------------------------------------------------------------------------------------
// The integrand

// log((1+t)^p - 1 - p·t) for |p·t| < 0.05 and |t| < 0.05: the binomial series from its second term on. The
// direct formula would lose all digits here (t = 1e-7 costs seven of them). pp = p(p-1) > 0 is passed since p
// - 1 loses digits of its own.
double log_excess_by_series(double p, double pp, double t) {
  double sum = 1;
  double term = 1;
  for (int k = 3; k < 40 && std::abs(term) > kRounding * 0.01; ++k) {
    term *= (p - (k - 1)) / k * t;
    sum += term;
  }
  return std::log(pp / 2) + 2 * std::log(std::abs(t)) + std::log(sum);
}

// log((1+t)^p - 1 - p·t) with p = 1+c (remove) or -c (add), to a few roundings of the exponent p·log(1+t).
// -infinity if t = 0.
double log_excess(Direction direction, double c, double q, double u) {
  const double t = q * std::expm1(u);
  const bool remove = direction == Direction::kRemove;
  if (t > 1e150) {  // e^u may have overflowed; every other term is at most 1e-140 of the leading one
    const double log_t = std::log(q) + u;
    if (!remove) return log_t + std::log(c);
    const double x = c * log_t;
    return log_t + (x > 40 ? x + std::log1p(-(1 + c) * std::exp(-x)) : std::log(std::expm1(x) - c));
  }
  if (std::abs(t) * (1 + c) < 0.05) return log_excess_by_series(remove ? 1 + c : -c, c * (1 + c), t);
  // 1 + t keeps its digits where t is close to -1 (q close to 1): 1 - q is exact there.
  const double one_plus_t = t < -0.5 ? (1 - q) + q * std::exp(u) : 1 + t;
  const double log_one_plus_t = t < -0.5 ? std::log(one_plus_t) : std::log1p(t);
  if (remove) {  // (1+t)^(1+c) - 1 - (1+c)t = (1+t)·expm1(c·log(1+t)) - c·t: no cancellation at small c
    const double x = c * log_one_plus_t;
    if (x > 40) return log_one_plus_t + x + std::log1p(-std::exp(-x) * (1 + c * t / one_plus_t));
    return std::log(one_plus_t * std::expm1(x) - c * t);
  }
  const double x = -c * log_one_plus_t;
  if (x > 40) return x + std::log1p(std::exp(-x) * (c * t - 1));
  return std::log(std::expm1(x) + c * t);
}

// ---------------------------------------------------------------------------------------------------------------
// The trapezoid rule

// Where the integrand lives, in unit cells of z. Beyond kTail standard deviations of the outermost Gaussian
// that the integrand contains, exp(-kTail²/2) = e^-84 is left.
constexpr double kTail = 13;
constexpr double kNegligible = 60;      // cells below e^-60 of the largest one are left out
constexpr double kMostCells = 1 << 17;  // limits time (about 5 ms) at orders that no run would choose
constexpr int64_t kMostNodes = 1 << 20;
constexpr double kAgreement = 1e-12;  // relative, between a mesh and its half; the finer one is far better than this

class Sum {  // Neumaier: the error does not grow with the number of nodes
 public:
  void add(double value) {
    const double next = sum_ + value;
    lost_ += std::abs(sum_) >= std::abs(value) ? (sum_ - next) + value : (value - next) + sum_;
    sum_ = next;
  }
  double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0;
  double lost_ = 0;
};

class Quadrature {
 public:
  Quadrature(Direction direction, SampledGaussian release, double c)
      : direction_(direction), q_(release.q), sigma_(release.sigma), c_(c) {}

  // log(A - 1), error bound added; nothing if two meshes do not agree.
  std::optional<double> log_excess_upper() {
    // The integrand contains Gaussians centred between 0 and (1+c)/sigma when a unit is removed; between
    // -c/sigma and, because of the subtracted linear term, 1/sigma when one is added.
    const bool remove = direction_ == Direction::kRemove;
    const double low = std::floor((remove ? 0 : -c_ / sigma_) - kTail);
    const double high = std::ceil((remove ? 1 + c_ : 1) / sigma_ + kTail);
    if (!(high - low <= kMostCells)) return std::nullopt;
    find_cells(low, static_cast<int64_t>(high - low));

    // Error of step h: about exp(-2 pi d/h + d²/2) for every d < pi·sigma, so e^-39 or less at this first
    // step, if the power is moderate. Larger powers are narrower and are found by the comparison below.
    double h = 1;
    while (h > std::min(0.5, sigma_ / 2)) h /= 2;
    if (!(static_cast<double>(cells_.size()) / h <= static_cast<double>(kMostNodes))) return std::nullopt;
    sum_nodes(h, 0);
    for (double coarse = sum_.value() * h; static_cast<double>(cells_.size()) / h * 2 <= kMostNodes;) {
      h /= 2;
      sum_nodes(2 * h, h);
      const double fine = sum_.value() * h;
      if (!(fine > 0 && fine < kInfinity)) return std::nullopt;
      const double rounding = kRounding * (16 + largest_exponent_);
      const double difference = std::abs(fine - coarse) / fine;
      if (difference <= std::max(kAgreement, 4 * rounding) && rounding < 1e-3)
        return scale_ + std::log(fine) - kHalfLogTwoPi + std::log1p(2 * difference + rounding);
      coarse = fine;
    }
    return std::nullopt;
  }

 private:
  double log_integrand(double z) const {
    return log_excess(direction_, c_, q_, z / sigma_ - 1 / (2 * sigma_ * sigma_)) - z * z / 2;
  }

  // Keeps the unit cells that matter, and their neighbours: when a unit is removed the second derivative of
  // the exponent is above -1, so that no cell holds more than e^(1/8) times its ends; when one is added the
  // exponent is concave, so that a peak between the ends lies next to the largest end.
  void find_cells(double low, int64_t count) {
    std::vector<double> ends(static_cast<size_t>(count) + 1);
    for (size_t i = 0; i < ends.size(); ++i) ends[i] = log_integrand(low + static_cast<double>(i));
    const double least = *std::max_element(ends.begin(), ends.end()) - kNegligible;
    const auto matters = [&](int64_t i) { return i >= 0 && i <= count && ends[static_cast<size_t>(i)] > least; };
    for (int64_t i = 0; i < count; ++i)
      if (matters(i - 1) || matters(i) || matters(i + 1) || matters(i + 2))
        cells_.push_back(low + static_cast<double>(i));
  }

  // Adds the integrand at offset, offset + step, … of each cell [cell, cell + 1), divided by e^scale_, to
  // sum_. The first call sets the scale.
  void sum_nodes(double step, double offset) {
    const auto per_cell = static_cast<int64_t>(std::llround(1 / step));
    std::vector<double> logs;
    logs.reserve(cells_.size() * static_cast<size_t>(per_cell));
    for (const double cell : cells_)
      for (int64_t i = 0; i < per_cell; ++i) {
        const double z = cell + offset + step * static_cast<double>(i);  // exact: step is a power of two
        logs.push_back(log_integrand(z));
        const double exponents = (1 + c_) * (std::abs(z) / sigma_ + 1 / (2 * sigma_ * sigma_)) + z * z / 2;
        largest_exponent_ = std::max(largest_exponent_, exponents);
      }
    if (offset == 0) scale_ = *std::max_element(logs.begin(), logs.end());
    for (const double value : logs) sum_.add(std::exp(value - scale_));
  }

  Direction direction_;
  double q_, sigma_, c_;
  std::vector<double> cells_;
  Sum sum_;
  double scale_ = 0;
  double largest_exponent_ = 0;  // each rounding of an exponent this large is one relative rounding of its node
};

double log1p_exp(double x) { return x > 40 ? x + std::exp(-x) : std::log1p(std::exp(x)); }

}  // namespace

SampledGaussian sampled_gaussian(const Event& event, Adjacency adjacency, const std::string& engine) {
  const bool replace = adjacency == Adjacency::kReplaceOne;
  if (const auto* gaussian = std::get_if<GaussianEvent>(&event))
    return {1.0, gaussian->sigma.value() / (replace ? 2 : 1)};
  if (!replace) {
    if (const auto* sampled = std::get_if<PoissonGaussianEvent>(&event))
      return {sampled->q.value(), sampled->sigma.value()};
    if (const auto* adaptive = std::get_if<AdaptiveClippingEvent>(&event)) {
      const double gradient = 1 / adaptive->sigma.value();
      const double centred_count = 1 / (2 * adaptive->count_sigma.value());
      return {adaptive->q.value(), 1 / std::hypot(gradient, centred_count) * (1 - 4 * kRounding)};
    }
  }
  throw std::invalid_argument("accountant " + engine + " must be given an event that it can bound under " +
                              to_string(adjacency) + " adjacency, got " + type_name(event));
}

double log_moment_upper(Direction direction, SampledGaussian release, double c) {
  const double gaussian = c * (1 + c) / (2 * release.sigma * release.sigma) * (1 + 4 * kRounding);
  if (release.q == 1) return gaussian;
  const double convexity =
      gaussian > 40 ? log1p_exp(gaussian + std::log(release.q)) : std::log1p(release.q * std::expm1(gaussian));
  if (release.sigma < kLeastResolvedSigma) return convexity * (1 + 8 * kRounding);
  const auto excess = Quadrature(direction, release, c).log_excess_upper();
  const double bound = excess ? std::min(log1p_exp(*excess), convexity) : convexity;
  return bound >= 0 ? bound * (1 + 8 * kRounding) : kInfinity;  // NaN becomes infinity
}

}  // namespace ghostshard::accountant
