#include "accountant/contour/large_losses.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "accountant/contour/least_near.h"
#include "accountant/contour/turning.h"
#include "accountant/gaussian/moment_strip.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kShiftRatio = 1.4;
constexpr double kDamped = 1e-24;     // nodes smaller than this share are left out of a sweep, and counted
constexpr double kMostOfCut = 65536;  // |chi| on the strip: 2^16
constexpr double kLogMostOfCut = 11.091;
constexpr double kWidest = 0.245 * std::numbers::pi;  // y0/sigma²: the strip then ends below pi/2
constexpr double kAllOfIt = 760;                      // from this s·v·cos on, e^(-s·v) is no number

// e^z - 1. Each of the three parts is at most 2.7 times the whole where Re z <= 0 and |Im z| <= |Re z|, or is exact to
// three roundings of 2^-53: 9 units of the whole.
Complex exp_less_one(double re, double im) {
  const double half = std::sin(im / 2);
  return {std::expm1(re) * std::cos(im) - 2 * half * half, std::exp(re) * std::sin(im)};
}

// As in moment_nodes.cpp.
double log_w(double q, double u) {
  if (u > 300) return std::log(q) + u;
  const double v = q * std::expm1(u);
  return v < -0.5 ? std::log((1 - q) + q * std::exp(u)) : std::log1p(v);
}

// log w at the shift theta·sigma², and |w - 1|.
struct ShiftedLoss {
  Complex l;
  double size_v;
};
ShiftedLoss shifted_loss(double q, double u, double theta) {
  if (u > 300) return {{std::log(q) + u, theta}, 1e300};
  const double half_sin = std::sin(theta / 2);
  const double growth = std::exp(u);
  const double re = q * (std::expm1(u) * std::cos(theta) - 2 * half_sin * half_sin);
  const double im = q * growth * std::sin(theta);
  const double size = std::sqrt(re * re + im * im);
  if (size < 0.2) return {{0.5 * std::log1p(2 * re + re * re + im * im), std::atan2(im, 1 + re)}, size};
  return {std::log(Complex((1 - q) + q * growth * std::cos(theta), im)), size};
}

struct Mesh {
  double shift, precision, h, first;
  int64_t nodes;
};
Mesh mesh_of(const ComposedRelease& phase, double c, double log_s) {
  const auto [q, sigma] = phase.release;
  Mesh mesh;
  mesh.precision = kPrecision + kLogMostOfCut + std::log(std::max(1.0, phase.count));
  mesh.shift = std::min(best_strip(Direction::kRemove, sigma, c, true, mesh.precision), kWidest * sigma * sigma);
  mesh.h = exact_step(mesh_step(Direction::kRemove, sigma, c, mesh.shift, mesh.shift, mesh.precision));
  auto [low, high] = outcomes_that_count(Direction::kRemove, q, sigma, c);
  // Below this outcome |s·v|^16 is negligible.
  const double least = 0.5 - sigma * sigma * (log_s + std::log(q) + (kNegligible + 30) / 16);
  low = std::clamp(least, low, std::max(low, high - 100 * mesh.h));
  mesh.first = std::floor(low / mesh.h);
  mesh.nodes = static_cast<int64_t>(std::floor(high / mesh.h) - mesh.first) + 2;
  return mesh;
}

}  // namespace

int64_t LargeLosses::nodes_needed(const ComposedRelease& phase, double c, double log_s) {
  return mesh_of(phase, c, log_s).nodes;
}

struct LargeLosses::Frame {
  double first, h, shift, theta, lift, log_h;
};

LargeLosses::LargeLosses(const ComposedRelease& phase, double c, double log_s)
    : q_(phase.release.q), sigma_(phase.release.sigma), count_(phase.count), c_(c), log_s_(log_s) {
  const RealMoment real = real_moment(Direction::kRemove, phase.release, c);
  log_m_ = real.log_m;
  log_m_error_ = real.error;
  const auto [shift, precision, h, first, nodes] = mesh_of(phase, c, log_s);
  const double lift = shift * shift / (2 * sigma_ * sigma_);
  const Frame frame{.first = first,
                    .h = h,
                    .shift = shift,
                    .theta = shift / (sigma_ * sigma_),
                    .lift = lift,
                    .log_h = std::log(h / (sigma_ * kSqrtTwoPi)) + lift};
  widest_angle_ = frame.theta;
  for (int64_t i = 0; i < nodes; ++i) add_node(frame, i);
  // Adding n terms in four lanes: at most n/4 + 4 roundings of the sum of moduli.
  error_ += kRounding / 2 * (static_cast<double>(l_re_.size()) / kTurnLanes + kTurnLanes + 1) * moduli_;
  // Beyond the nodes to the right: at most the integrand at the end times sigma/kTail (contour_moments.h). To the left
  // |s·v|^16·N falls by e^((16 - x)·h/sigma²) from each node to the next, at least, and w falls too; or if that is not
  // much, as on the right, where outcomes_that_count decided.
  const auto beyond = [&](double x) {
    const double l = log_w(q_, (2 * x - 1) / (2 * sigma_ * sigma_));
    return -x * x / (2 * sigma_ * sigma_) + lift + (1 + c_) * l - log_m_;
  };
  const double last = (first + static_cast<double>(nodes - 1)) * h;
  left_out_ += 1.01 * kMostOfCut * std::exp(beyond(last) - std::log(kTail * kSqrtTwoPi));
  const double start = first * h;
  const double of_start = 16 * (log_s_ + std::log(q_) + (2 * start - 1) / (2 * sigma_ * sigma_));
  const double falls = start < 15 ? -std::expm1(-(16 - start) * h / (sigma_ * sigma_)) : 0;
  const double by_power =
      std::exp(beyond(start) + std::log(h / (sigma_ * kSqrtTwoPi)) + std::min(of_start, 600.0)) / falls;
  const double by_tail = start <= -kTail * sigma_ ? kMostOfCut * std::exp(beyond(start) - std::log(kTail * kSqrtTwoPi))
                                                  : std::numeric_limits<double>::infinity();
  left_out_ += 1.01 * std::min(by_power, by_tail);
  // The rule: 2·2^16·e^(reach²/(2 sigma²))·M(c)/(e^(2 pi d/h) - 1), where mesh_step's h makes the denominator as much
  // larger as e^precision; and the rounding of that, and M(c) less e^log_m.
  left_out_ += 40 * std::exp(-precision);
  error_ += left_out_;
}

// Roundings of chi: s·v errs by 6 + 3|u|/2 + |log s| + |log q| units of itself, parts and all. |d log(1 - e^-Z)| =
// |Z/(e^Z - 1)|·|d log Z|, at most |Z|/Re Z = 1/cos(theta) < 1.4 times that. With exp_less_one's that is 18 + 2.1|u|
// + 1.4(|log s| + |log q|), sixteen times for the power, and less than 30 for its four squares, sqrt(5)/2 each and
// doubled by those that follow.
void LargeLosses::add_node(const Frame& frame, int64_t i) {
  const double x = (frame.first + static_cast<double>(i)) * frame.h;
  const double z = x / sigma_;
  const double u = (2 * x - 1) / (2 * sigma_ * sigma_);
  const double log_weight = frame.log_h - z * z / 2;
  const double p0 = 1 + c_;
  const double real_l = log_w(q_, u);
  const double log_sv = log_s_ + std::log(q_) + u;
  // Cheap upper bounds decide first.
  const double log_most = log_weight + p0 * real_l - log_m_ + std::min(kLogMostOfCut, 16 * log_sv);
  if (log_most < -kNegligible) {
    left_out_ += 1.01 * std::exp(log_most);
    return;
  }
  const auto [l, size_v] = shifted_loss(q_, u, frame.theta);
  Complex chi = 1;
  double of_chi = kRounding;
  if (const double sv = std::exp(std::min(log_sv, 100.0)); sv * std::cos(frame.theta) < kAllOfIt) {
    const Complex lost = exp_less_one(-sv * std::cos(frame.theta), -sv * std::sin(frame.theta));
    chi = lost;
    for (int square = 0; square < 4; ++square) chi *= chi;
    of_chi = kRounding * (330 + 34 * std::abs(u) + 23 * (std::abs(log_s_) + std::abs(std::log(q_))));
  }
  const double phase = -z * frame.shift / sigma_;
  const double tilted = std::exp(log_weight + p0 * l.real() - log_m_);
  const double tilted_phase = phase + p0 * l.imag();
  const Complex weight = std::polar(tilted, tilted_phase) * chi;
  l_re_.push_back(l.real());
  l_im_.push_back(l.imag());
  weight_re_.push_back(weight.real());
  weight_im_.push_back(weight.imag());
  u_.push_back(u);
  mass_.push_back(std::exp(log_weight - frame.lift + p0 * real_l - log_m_));
  // As in moment_nodes.cpp; log1p's argument may lose three units more.
  const double of_weight = kRounding * (8 + z * z + 2 * std::abs(phase) + 2 * std::abs(frame.log_h));
  of_loss_.push_back(kRounding * (size_v < 0.2 ? 16 + 4 * std::abs(u) : 4 + (3 + 2.5 * std::abs(u)) / std::abs(l)));
  of_mass_.push_back(kRounding * (10 + z * z + 2 * std::abs(frame.log_h) + 2 * frame.lift + std::abs(log_m_) +
                                  std::abs(p0 * real_l) * (8 + 3 * std::min(std::abs(u), 40.0))) +
                     of_chi);
  const double modulus = std::abs(weight.real()) + std::abs(weight.imag());
  error_ += modulus * (of_weight + of_chi + p0 * std::abs(l) * of_loss_.back() +
                       kRounding * (6 + p0 * std::abs(l.real()) + std::abs(tilted_phase) + std::abs(log_m_)));
  error_per_p_ += modulus * std::abs(l) * (of_loss_.back() + 2 * kRounding);
  moduli_ += modulus;
}

// As LineMoment::sweep_direct.
void LargeLosses::sweep(double step, size_t first, size_t end, const Visitor& visit) const {
  const size_t size = l_re_.size();
  Turning<double> nodes(end - first);
  std::vector<size_t> kept(size);
  std::iota(kept.begin(), kept.end(), size_t{0});
  std::vector<Turning<double>::Factors> factors(size);
  double of_turns = 0;
  for (size_t j = 0; j < size; ++j) {
    factors[j] = nodes.factors(step, {-l_im_[j], l_re_[j]});
    const double modulus = std::abs(weight_re_[j]) + std::abs(weight_im_[j]);
    of_turns += modulus * (8 * kUnit<double> + nodes.rounding(step, std::abs(l_re_[j]) + std::abs(l_im_[j])));
  }
  of_turns *= 1.01;
  double damped = 0;
  const double negligible = kDamped / (count_ * static_cast<double>(size));
  for (size_t k = first; k < end; k += kTurnsAtOnce) {
    if ((k - first) % nodes.steps() == 0) {
      const double t = step * static_cast<double>(k);
      nodes.clear();
      std::erase_if(kept, [&](size_t j) {
        const double damping = std::exp(-t * l_im_[j]);  // falls with t: arg w >= 0
        const double modulus = damping * (std::abs(weight_re_[j]) + std::abs(weight_im_[j]));
        if (modulus < negligible) {
          damped += modulus;
          return true;
        }
        nodes.add(Complex(weight_re_[j], weight_im_[j]) * std::polar(damping, t * l_re_[j]), factors[j]);
        return false;
      });
      nodes.begin();
    }
    TurnSums<double> sums;
    nodes.sums_and_turn(sums);
    for (size_t i = 0; i < kTurnsAtOnce && k + i < end; ++i)
      visit(k + i, {sums.re[i], sums.im[i]},
            error_ + step * static_cast<double>(k + i) * error_per_p_ + of_turns + damped);
  }
}

double LargeLosses::work(double step, size_t n) const {
  double sum = 0;
  for (size_t j = 0; j < l_re_.size(); ++j) {
    const double size = std::log(std::abs(weight_re_[j]) + std::abs(weight_im_[j]) + 1e-300) - std::log(kDamped);
    const double last = std::max(0.0, size + std::log(count_ * static_cast<double>(l_re_.size()))) / (step * l_im_[j]);
    sum += std::min(last + 64, static_cast<double>(n));
  }
  return sum;
}

const LargeLosses::Shifted& LargeLosses::shifted(size_t index) const {
  if (shifts_.empty()) shifts_.resize(kShifts);
  Shifted& shifted = shifts_[index];
  if (shifted.known) return shifted;
  shifted.known = true;
  const double theta = widest_angle_ * std::pow(kShiftRatio, -static_cast<double>(index));
  const double lift = theta * theta * sigma_ * sigma_ / 2;
  const double half_sin = std::sin(theta / 2);
  const double sine = std::sin(theta);
  const double cosine = std::cos(theta);
  for (size_t j = 0; j < u_.size(); ++j) {
    const double odds = q_ * std::exp(std::min(u_[j], 600.0));
    const double w = (1 - q_) + odds;
    const double shrinks = 0.5 * std::log1p(-4 * ((1 - q_) / w) * (odds / w) * half_sin * half_sin);
    const double sv = std::exp(std::min(log_s_ + std::log(q_) + u_[j], 100.0));
    const double half_turn = std::sin(sv * sine / 2);
    const double lost = std::expm1(-sv * cosine);
    const double square = lost * lost + 4 * std::exp(-sv * cosine) * half_turn * half_turn;  // |1 - e^(-sv)|²
    const double fourth = square * square;
    shifted.mass.push_back(mass_[j] * (fourth * fourth) * (fourth * fourth));
    shifted.fixed.push_back(lift + (1 + c_) * shrinks);
    shifted.angle.push_back(std::atan2(odds * sine, (1 - q_) + odds * cosine));
    // As in line_rest.cpp.
    shifted.rounding.push_back(kRounding * (64 + 6 * std::min(std::abs(u_[j]), 600.0)));
  }
  return shifted;
}

// A logarithm.
double LargeLosses::bound_at(size_t index, double t) const {
  const Shifted& line = shifted(index);
  double sum = 0;
  for (size_t j = 0; j < mass_.size(); ++j) {
    const double turned = t * line.angle[j];
    const double exponent = line.fixed[j] - turned;
    if (exponent < -800) continue;  // counted below
    const double error = of_mass_[j] + 8 * kRounding + line.rounding[j] * (2 * std::abs(line.fixed[j]) + turned + 1);
    sum += line.mass[j] * std::exp(exponent) * (1 + 1.01 * error);
  }
  const auto size = static_cast<double>(mass_.size());
  return std::log((sum * (1 + kRounding * size) + left_out_) * (1 + 1e-12) + size * 1e-300);
}

double LargeLosses::log_rest(double t) const {
  const Least found = least_near(last_shift_, kShifts, [&](size_t index) { return bound_at(index, t); });
  last_shift_ = found.place;
  return found.value;
}

}  // namespace ghostshard::accountant
