#include "accountant/contour/contour_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "accountant/contour/large_line.h"
#include "accountant/contour/line_moments.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/least_double.h"
#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMostNodes = 2'000'000;
// If the integrand exceeds the integral by more than this power of e, both are kept in long double where that is cheap;
// also where the rounding of double may add more than kMostRounding to epsilon and it is affordable.
constexpr double kLeastCancelling = 5;
constexpr size_t kCheaplyPrecise = 300'000;
constexpr double kMostRounding = 3e-8;
constexpr double kLooselyOfMany = 5;   // times as much, of many phases, where long double takes long
constexpr double kLooselyIfLong = 20;  // or of so many evaluations
constexpr size_t kLong = 4'000'000;
constexpr double kLeastDigits = 12;  // of a line with less than these
constexpr double kMostCancellingOfRough = 20;
constexpr int64_t kPreciseCost = 10;  // of an evaluation in long double, in those in double
constexpr int64_t kMostPrecise = 16'000'000;
constexpr size_t kBlock = 64;  // nodes that are added up in turn
constexpr size_t kManyPhases = 16;
constexpr size_t kPartsOfPhases = 8;
constexpr size_t kManyNodes = 3000;    // of all meshes
constexpr double kLengthening = 1.15;  // from one end of the line that is tried to the next
constexpr double kNodesOfALook = 2;    // a look at what lies beyond an end takes longer than so many nodes
constexpr double kEndOfLarge = 16;     // of a line of large losses, about

double modulus_at_most(std::complex<long double> z) {
  return std::abs(static_cast<double>(z.real())) + std::abs(static_cast<double>(z.imag()));  // within its rounding
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Beyond the last node

namespace {

// An upper bound on log |M(c+it')/M(c)| of all releases, for all t' >= t.
using LogRest = std::function<double(double t)>;

// Sum over the nodes t_k >= t, a step apart, of an upper bound of |M(c+it_k)/M(c)|/t_k², by doublings of t. +infinity
// if it exceeds `wanted`.
double rest_beyond(const LogRest& log_rest, double t, double step, double wanted) {
  double sum = 0;
  for (int i = 0; i < 200; ++i) {
    // Σ 1/t_k², t_k >= t. The logarithms, of some hundred each, and their sum err by less than a thousandth.
    const double share = 1.001 * std::exp(log_rest(t)) * (1 / (step * t) + 1 / (t * t));
    sum += share;
    if (!(sum <= wanted)) return kInfinity;
    if (share <= wanted - sum) return sum + share;  // the shares fall at least by halves
    t *= 2;
  }
  return kInfinity;
}

// How far the nodes must go for the rest beyond them to be at most `wanted`. Nothing if that is beyond `farthest`.
// near: about where that is.
struct LineEnd {
  double t;
  double rest;
};
std::optional<LineEnd> end_of_line(const LogRest& log_rest, double step, double wanted, double farthest, double near) {
  LineEnd end{std::max(near, 4 * step), 0};
  double too_near = 0;
  double ratio = near > 4 * step ? kLengthening : 2;
  while (!((end.rest = rest_beyond(log_rest, end.t, step, wanted)) < kInfinity)) {
    too_near = end.t;
    end.t *= ratio;
    ratio = std::min(2.0, ratio * ratio);
    if (!(too_near <= farthest)) return std::nullopt;  // nor if one of them is no number
  }
  const auto worthwhile = [&] { return end.t > too_near * kLengthening && end.t - too_near > kNodesOfALook * step; };
  for (int i = 0; i < 24 && worthwhile(); ++i) {
    const double middle = too_near == 0 ? end.t / ratio : std::sqrt(too_near * end.t);
    const double rest = rest_beyond(log_rest, middle, step, wanted);
    if (rest < kInfinity) end.rest = rest;
    (rest < kInfinity ? end.t : too_near) = middle;
    if (too_near == 0) ratio = std::min(2.0, ratio * ratio);
  }
  if (!(end.t <= farthest)) return std::nullopt;
  return end;
}

}  // namespace

struct ContourLine::Begun {
  ContourLine line;
  LineMoments moments;
  std::vector<LargeLosses> large;
  size_t n;  // nodes along the line
};

std::optional<ContourLine::Begun> ContourLine::begin(Direction direction, std::span<const ComposedRelease> phases,
                                                     double saddle, double epsilon, double log_delta, double intercept,
                                                     int64_t budget, double wanted_digits, const SigmaRule* rule,
                                                     const LossCut* cut, double below_zero) {
  ContourLine line;
  line.below_zero_ = below_zero;
  auto choice = choose_line(direction, phases, saddle, epsilon, log_delta, intercept, wanted_digits, rule,
                            epsilon + below_zero * (1 + 1e-9));
  if (!choice) return std::nullopt;
  const double c = line.c_ = choice->c;
  line.period_ = choice->period;
  line.told_ = choice->told;
  if (line.told_ > 0) line.told_phases_.assign(phases.begin(), phases.end());
  line.chernoff_ = std::move(choice->beyond);
  // A Gaussian of this variance falls to what is wanted here; heavier tails fall later.
  const auto end_of_gaussian = [&](double log_wanted) {
    return std::sqrt(2 * std::max(1.0, -log_wanted) / choice->variance);
  };
  const auto log_wanted_at = [&](double log_scale) {
    return log_delta + c * epsilon - log_scale + std::log(line.period_ / 2) - wanted_digits;
  };
  // Moments take longest to make: not those of a line that would be too long.
  const int64_t of_meshes = mesh_nodes(direction, phases, c);
  const int64_t most_nodes = std::min(kMostNodes, budget / std::max<int64_t>(1, of_meshes));
  if (cut == nullptr && rule == nullptr && choice->variance > 0 &&
      end_of_gaussian(log_wanted_at(choice->k)) > line.step<double>() * static_cast<double>(most_nodes))
    return std::nullopt;
  auto moments = moments_on_line(direction, phases, c, of_meshes);
  if (!moments) return std::nullopt;
  if (rule != nullptr) rule->align(moments->each);
  line.log_scale_ = moments->log_scale;
  line.phases_ = phases.size();
  const auto log_scale = static_cast<double>(moments->log_scale);
  std::vector<LargeLosses> large;
  if (cut != nullptr) {
    line.cut_ = *cut;
    large = large_losses(phases, c, *cut);
    if (large.empty()) return std::nullopt;
  }
  const size_t nodes = moments->nodes;

  const auto step = line.step<double>();
  const double wanted = std::exp(log_wanted_at(log_scale));
  double farthest = step * static_cast<double>(std::min(kMostNodes, budget / static_cast<int64_t>(nodes)));
  if (cut != nullptr)  // most nodes count for a small part of the line: what it costs is known when its end is
    farthest = step * static_cast<double>(std::min<int64_t>(kMostNodes, budget / kCostOfNode));
  if (rule != nullptr) farthest = std::min(farthest, rule->reach(c) - step);
  const auto log_rest = [&](double t) {
    if (cut != nullptr) return log_rest_of(large, t);
    if (rule != nullptr) return rule->log_rest(moments->each, c, t);
    // From here on rest_beyond asks for no less.
    const double enough = std::log(wanted / (2.1 * (1 / (step * t) + 1 / (t * t))));
    return log_rest_of_all(moments->each, t, enough);
  };
  // The rest falls with t: where that takes long, asking at the farthest end first saves asking all the way in vain.
  if ((phases.size() > kManyPhases || nodes > kManyNodes) &&
      !(rest_beyond(log_rest, std::max(farthest, step), step, wanted) < kInfinity))
    return std::nullopt;
  const double near = cut != nullptr    ? kEndOfLarge
                      : rule != nullptr ? rule->end_near(wanted_digits)
                                        : end_of_gaussian(std::log(wanted)) / 2;
  const auto end = end_of_line(log_rest, step, wanted, farthest, std::min(near, farthest));
  if (!end) return std::nullopt;
  line.rest_ = end->rest;

  const auto n = static_cast<size_t>(std::ceil(end->t / step));
  if (cut != nullptr && work_of_large(phases, moments->each, large, *cut, step, n) > static_cast<double>(budget))
    return std::nullopt;
  const double excess = line.log_excess_ = log_scale - c * epsilon - std::log(c) - std::log1p(c) - log_delta;
  const bool rough = wanted_digits < kLeastDigits;
  line.precise_ =
      excess > (rough ? kMostCancellingOfRough : kLeastCancelling) && n * nodes <= kCheaplyPrecise && cut == nullptr;
  return Begun{std::move(line), *std::move(moments), std::move(large), n};
}

std::optional<ContourLine> ContourLine::make(Direction direction, std::span<const ComposedRelease> phases,
                                             double saddle, double epsilon, double log_delta, double intercept,
                                             int64_t budget, double wanted_digits, const SigmaRule* rule,
                                             const LossCut* cut, double below_zero) {
  auto begun =
      begin(direction, phases, saddle, epsilon, log_delta, intercept, budget, wanted_digits, rule, cut, below_zero);
  if (!begun) return std::nullopt;
  auto& [line, moments, large, n] = *begun;
  if (cut != nullptr) {
    line.take_large(moments.each, large, n);
    return std::move(line);
  }
  const auto take = [&, &line = line, &moments = moments, &n = n] {  // clang 14 captures no bindings
    if (line.precise_)
      moments.each = each_moment(direction, phases, line.c_, true, static_cast<int64_t>(moments.nodes));
    line.take_integrand(moments.each, n, rule);
  };
  take();
  const auto affordable = static_cast<size_t>(budget < kMostPrecise ? budget / kPreciseCost : kMostPrecise);
  // Of a line that checks another one double is enough.
  if (!line.precise_ && intercept == 0 && wanted_digits >= kLeastDigits && n * moments.nodes <= affordable) {
    double of_integrand = 0;
    for (const double error : line.error_) of_integrand += 2 * error;
    double of_rule = 0;  // which no arithmetic helps
    if (rule != nullptr)
      for (size_t k = 0; k < n; ++k)
        of_rule += 2 * modulus_at_most(line.integrand_[k]) *
                   std::expm1(rule->log_error(line.c_, line.step<double>() * static_cast<double>(k)));
    const double loosely = n * moments.nodes > kLong     ? kLooselyIfLong
                           : phases.size() > kManyPhases ? kLooselyOfMany
                                                         : 1;
    const double most = kMostRounding * std::clamp(loosely * line.c_, 0.1, 10 * loosely) * line.period_ *
                        std::exp(log_delta + line.c_ * epsilon - static_cast<double>(line.log_scale_));
    line.precise_ = of_integrand - of_rule > most && of_integrand > 2 * of_rule;
    if (line.precise_) take();
  }
  return std::move(line);
}

std::optional<ContourLine::Extent> ContourLine::extent(Direction direction, std::span<const ComposedRelease> phases,
                                                       double saddle, double epsilon, double log_delta, int64_t budget,
                                                       double wanted_digits) {
  const auto begun =
      begin(direction, phases, saddle, epsilon, log_delta, 0, budget, wanted_digits, nullptr, nullptr, kInfinity);
  if (!begun) return std::nullopt;
  return Extent{begun->line.c_, begun->line.step<double>() * static_cast<double>(begun->n), begun->line.log_excess_,
                begun->n};
}

namespace {

// Of phases, at each node of a line.
struct NodeSums {
  explicit NodeSums(size_t n) : log_power(n, 0), error(n, 0), size(n, 0) {}
  void add(size_t k, std::complex<long double> more, double its_error, double its_size) {
    log_power[k] += more;
    error[k] += its_error * (1 + error[k]);  // (1+a)(1+b) - 1 <= a + b(1+a)
    size[k] += its_size;
  }

  std::vector<std::complex<long double>> log_power;
  std::vector<double> error;
  std::vector<double> size;  // sums of moduli: the rounding of adding so many logarithms
};

}  // namespace

void ContourLine::take_integrand(std::span<const PhaseMoment> moments, size_t n, const SigmaRule* rule) {
  NodeSums all(n);
  if (rule != nullptr)
    for (size_t k = 0; k < n; ++k)
      all.error[k] = std::expm1(rule->log_error(c_, step<double>() * static_cast<double>(k))) * (1 + 8 * kRounding);
  size_t nodes = 0;
  for (const PhaseMoment& moment : moments) nodes += moment.nodes();
  const auto sweep = [&](std::span<const PhaseMoment> some, size_t first, size_t end, NodeSums& sums) {
    const auto add = [&](size_t k, const LineMoment::Value& value) {
      sums.add(k, value.log_power, value.relative_error, modulus_at_most(value.log_power));
    };
    for (const PhaseMoment& moment : some)
      if (precise_)
        moment.sweep<long double>(step<long double>(), first, end, add);
      else
        moment.sweep<double>(step<double>(), first, end, add);
  };
  if (moments.size() < kManyPhases) {
    in_parts(n, kNodesOfAPart, static_cast<double>(nodes),
             [&](size_t first, size_t end) { sweep(moments, first, end, all); });
  } else {  // a phase's sweep takes long to begin: all of a line by the same part
    const size_t granule = (moments.size() + kPartsOfPhases - 1) / kPartsOfPhases;
    std::vector<NodeSums> parts((moments.size() - 1) / granule + 1, NodeSums(0));
    const double nanoseconds =
        static_cast<double>(nodes) * static_cast<double>(n) / static_cast<double>(moments.size());
    in_parts(moments.size(), granule, nanoseconds, [&](size_t first, size_t end) {
      NodeSums& sums = parts[first / granule] = NodeSums(n);
      sweep(moments.subspan(first, end - first), 0, n, sums);
    });
    for (const NodeSums& sums : parts)
      for (size_t k = 0; k < sums.size.size(); ++k) all.add(k, sums.log_power[k], sums.error[k], sums.size[k]);
  }
  integrand_ = std::move(all.log_power);
  error_ = std::move(all.error);
  const double unit = precise_ ? static_cast<double>(std::numeric_limits<long double>::epsilon()) : kRounding;
  const double adding = kLongRounding * static_cast<double>(moments.size() + kPartsOfPhases);
  for (size_t k = 0; k < n; ++k) {
    const double size = modulus_at_most(integrand_[k]);
    integrand_[k] = over_z(integrand_[k], k);
    const double roundings = unit * (16 + 2 * size) + adding * all.size[k];
    error_[k] = modulus_at_most(integrand_[k]) * (error_[k] + roundings * (1 + error_[k])) * (1 + 8 * kRounding);
  }
}

std::complex<long double> ContourLine::over_z(std::complex<long double> log_power, size_t k) const {
  if (precise_) {
    const std::complex<long double> z(c_, step<long double>() * static_cast<long double>(k));
    return std::exp(log_power) / (z * (z + 1.0L));
  }
  const double t = step<double>() * static_cast<double>(k);
  const double re = c_ * (c_ + 1) - t * t;  // of z(z+1)
  const double im = (2 * c_ + 1) * t;
  const Complex power = std::exp(Complex(log_power)) / ((c_ * c_ + t * t) * ((c_ + 1) * (c_ + 1) + t * t));
  return Complex(power.real() * re + power.imag() * im, power.imag() * re - power.real() * im);
}

ContourLine::Value ContourLine::at(double epsilon) const {
  return precise_ ? evaluate<long double>(epsilon) : evaluate<double>(epsilon);
}

template <class Real>
ContourLine::Value ContourLine::evaluate(double epsilon) const {
  long double real_sum = 0;
  long double real_slope = 0;
  double error = 2 * rest_;
  const auto unit = static_cast<double>(std::numeric_limits<Real>::epsilon());
  // Of e^(-i·t·epsilon) at k = first + i: that at `first` times that at i. Both angles err by a unit of themselves,
  // hence by |angle| together; the sines and the product by less than six.
  std::array<std::complex<Real>, kBlock> turns;
  for (size_t i = 0; i < std::min(kBlock, integrand_.size()); ++i) {
    const Real angle = -step<Real>() * static_cast<Real>(i) * static_cast<Real>(epsilon);
    turns[i] = {std::cos(angle), std::sin(angle)};
  }
  for (size_t first = 0; first < integrand_.size(); first += kBlock) {
    const Real first_angle = -step<Real>() * static_cast<Real>(first) * static_cast<Real>(epsilon);
    const std::complex<Real> begin(std::cos(first_angle), std::sin(first_angle));
    const size_t size = std::min(kBlock, integrand_.size() - first);
    // Up to kBlock terms in turn: each of their roundings is at most half a unit of the sum of all moduli. Blocks are
    // added in long double.
    Real block_sum = 0;
    Real block_slope = 0;
    double block_error = 0;
    for (size_t i = 0; i < size; ++i) {
      const size_t k = first + i;
      const Real t = step<Real>() * static_cast<Real>(k);
      const auto re = static_cast<Real>(integrand_[k].real());
      const auto im = static_cast<Real>(integrand_[k].imag());
      const Real turn_re = begin.real() * turns[i].real() - begin.imag() * turns[i].imag();
      const Real turn_im = begin.real() * turns[i].imag() + begin.imag() * turns[i].real();
      const Real term_re = re * turn_re - im * turn_im;
      const Real term_im = re * turn_im + im * turn_re;
      const double weight = k == 0 ? 1 : 2;
      block_sum += weight * term_re;
      block_slope -= weight * (c_ * term_re - t * term_im);
      const double modulus = std::abs(static_cast<double>(re)) + std::abs(static_cast<double>(im));
      const double angle = static_cast<double>(t) * std::abs(epsilon);
      block_error += weight * (error_[k] + modulus * unit * (10 + angle + static_cast<double>(kBlock) / 2));
    }
    real_sum += block_sum;
    real_slope += block_slope;
    error += block_error;
  }
  // Adding the blocks, a 64th of so many roundings of long double of the sum of all moduli; error holds 42 units of it.
  error *= 1 + kLongRounding * static_cast<double>(integrand_.size()) / (unit * kBlock * 42);
  const auto sum = static_cast<double>(real_sum);
  const auto slope = static_cast<double>(real_slope);
  const long double exponent = log_scale_ - static_cast<long double>(c_) * epsilon;
  const double scale = std::exp(static_cast<double>(exponent)) / period_;
  // log_scale_ is a sum over the phases, none of them negative (chernoff.cpp), each with some roundings of its own.
  const double of_exponent =
      kLongRounding *
      ((static_cast<double>(phases_) + 16) * static_cast<double>(std::abs(log_scale_)) + 2 * c_ * std::abs(epsilon));
  const double of_scale = kRounding * (8 + std::abs(static_cast<double>(exponent))) + 1.01 * of_exponent;
  const double raw = scale * sum;
  const auto [known_left, left_slope, of_left] = left_alias(epsilon);
  Value value{raw - known_left, scale * slope - left_slope, {0, 1}};
  // Every bound above is itself a sum of so many rounded numbers.
  const double own = 1 + kRounding * (64 + 2 * static_cast<double>(integrand_.size()));
  const double lost = kLeast * (8 + (1 + 1 / period_) * (std::abs(sum) + error));  // of a scale below 2^-1022
  const double rounding = (scale * error * (1 + of_scale) + of_scale * std::abs(raw)) * own + lost + of_left;

  const double right = right_alias(epsilon);
  const double left =
      known_left > 0 ? 0
                     : std::exp(-c_ * period_) / -std::expm1(-c_ * period_) * (1 + 4 * kRounding * (2 + c_ * period_));
  const double small = cut_ ? std::exp(cut_->log_small(epsilon)) * (1 + 1e-12) + kLeast : 0;
  value.bracket = {std::max(0.0, value.delta - rounding - right - left), std::min(1.0, value.delta + rounding + small)};
  if (!(value.bracket.lower <= value.bracket.upper)) value.bracket = {0, 1};  // a NaN says nothing
  return value;
}

}  // namespace ghostshard::accountant
