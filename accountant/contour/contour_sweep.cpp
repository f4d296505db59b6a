// M(c + it) at equidistant t, by multiplication from one to the next: exponentials and sines are taken once in some
// steps. Nodes that are damped below any use are left out from there on, and counted.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "accountant/contour/contour_moments.h"
#include "accountant/contour/turn_lanes.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
using LongComplex = std::complex<long double>;
template <class Real>
constexpr double kUnit = static_cast<double>(std::numeric_limits<Real>::epsilon());
// Steps by multiplication before all are taken afresh: each adds the roundings of one product and of its factor. A
// short sweep takes fewer.
size_t turns_of(size_t nodes) { return nodes < 4000 ? 8 : 64; }
constexpr size_t kShort = 24;
constexpr double kDamped = 1e-24;  // of the sum, divided by the count: smaller nodes are left out

// z_j(t) = z_j(t_0)·e^(i·sign·(t - t_0)·l_j) for some nodes, and their sum.
template <class Real>
struct Turning {
  std::vector<Real> re, im, turn_re, turn_im;

  void clear() {
    for (auto* part : {&re, &im, &turn_re, &turn_im}) part->clear();
  }
  void add(std::complex<Real> now, std::complex<Real> turn) {
    re.push_back(now.real());
    im.push_back(now.imag());
    turn_re.push_back(turn.real());
    turn_im.push_back(turn.imag());
  }
  // The sum, added up in lanes; then one step.
  std::complex<Real> sum_and_turn() {
    Real lanes_re[kLanes] = {};
    Real lanes_im[kLanes] = {};
    const size_t size = re.size();
    const size_t whole = size / kLanes * kLanes;
    turn_lanes(re.data(), im.data(), turn_re.data(), turn_im.data(), whole, lanes_re, lanes_im);
    for (size_t j = whole; j < size; ++j) {
      lanes_re[j - whole] += re[j];
      lanes_im[j - whole] += im[j];
      const Real a = re[j] * turn_re[j] - im[j] * turn_im[j];
      im[j] = re[j] * turn_im[j] + im[j] * turn_re[j];
      re[j] = a;
    }
    return {std::accumulate(std::begin(lanes_re), std::end(lanes_re), Real(0)),
            std::accumulate(std::begin(lanes_im), std::end(lanes_im), Real(0))};
  }
  // Roundings of that sum, of the sum of moduli.
  double adding() const { return kUnit<Real> / 2 * (static_cast<double>(re.size()) / kLanes + kLanes); }
};

// Relative rounding of so many steps: a complex product's, at most sqrt(2) units (Higham 2002, Lemma 3.5), and the
// factor's, of two units and those of its exponent step·l, which is two products.
template <class Real>
double of_turning(size_t steps, double step, double l) {
  return kUnit<Real> * static_cast<double>(steps) * (5 + 2 * step * l);
}

// Terms e2(y) = e^y - 1 - y with |y| < kSmall by their series, all nodes together: one polynomial in p.
constexpr double kSmall = 0.5;
template <class Real>
constexpr size_t kTerms = sizeof(Real) > 8 ? 18 : 15;  // 0.5^k/k! after the last is below the rounding of 0.5²/2
template <class Real>
struct SmallTerms {
  std::array<std::complex<Real>, kTerms<Real> + 1> coefficients{};  // of (p/largest_p)^k; those of k < 2 are none
  Real largest_p = 1;
  double error_per_p2 = 0;

  std::complex<Real> at(std::complex<Real> p) const {
    const Real x_re = p.real() / largest_p;
    const Real x_im = p.imag() / largest_p;
    Real re = 0;
    Real im = 0;
    for (size_t k = kTerms<Real>; k >= 2; --k) {
      const Real next = re * x_re - im * x_im + coefficients[k].real();
      im = re * x_im + im * x_re + coefficients[k].imag();
      re = next;
    }
    const Real square_re = x_re * x_re - x_im * x_im;
    const Real square_im = 2 * x_re * x_im;
    return {re * square_re - im * square_im, re * square_im + im * square_re};
  }
};

}  // namespace

void LineMoment::sweep_direct(double step, size_t first, size_t n, const Visitor& visit) const {
  const size_t size = l_re_.size();
  const size_t turns = turns_of(n);
  const double sign = direction_ == Direction::kRemove ? 1 : -1;
  std::vector<size_t> kept(size);
  std::iota(kept.begin(), kept.end(), size_t{0});
  std::vector<Complex> factors(size);
  double of_turns = 0;  // of the sum of the nodes; none grows, since arg w >= 0
  for (size_t j = 0; j < size; ++j) {
    factors[j] = std::exp(Complex(-l_im_[j], l_re_[j]) * (sign * step));
    const double modulus = std::abs(tilted_re_[j]) + std::abs(tilted_im_[j]);
    of_turns +=
        modulus * (8 * kUnit<double> + of_turning<double>(turns, step, std::abs(l_re_[j]) + std::abs(l_im_[j])));
  }
  of_turns *= 1.01;
  Turning<double> nodes;
  double left_out = 0;
  const double negligible = kDamped / (count_ * static_cast<double>(size));
  for (size_t k = first, since = 0; k < n; ++k, ++since) {
    const double t = step * static_cast<double>(k);
    if (since % turns == 0) {
      nodes.clear();
      std::erase_if(kept, [&](size_t j) {
        const double damping = std::exp(-sign * t * l_im_[j]);  // falls with t: arg w >= 0
        const Complex tilted(tilted_re_[j], tilted_im_[j]);
        const double modulus = damping * (std::abs(tilted.real()) + std::abs(tilted.imag()));
        if (modulus < negligible) {
          left_out += modulus;
          return true;
        }
        nodes.add(tilted * std::polar(damping, sign * t * l_re_[j]), factors[j]);
        return false;
      });
    }
    const Complex sum = nodes.sum_and_turn();
    visit(k, finish(sum, direct_error_ + t * direct_error_per_p_ + of_turns + left_out));
  }
}

// M - 1 = Σ weight·(e2(p·l) + p·d). Where |p·l| is small for all t of a panel: SmallTerms. Elsewhere e^(p·l) by
// turning, and 1 + p·l, which is linear in p, from two sums. Every constant of an error below is that of a rounding
// counted out once (Higham 2002, §3) and doubled.
template <class Real>
class LineMoment::ExcessSweep {
 public:
  // n: nodes of the whole line.
  ExcessSweep(const LineMoment& moment, Real step, size_t n)
      : moment_(moment),
        step_(step),
        turns_(turns_of(n)),
        sign_(moment.direction_ == Direction::kRemove ? 1 : -1),
        pr_(moment.direction_ == Direction::kRemove ? 1 + Real(moment.c_) : -Real(moment.c_)),
        negligible_(kDamped / (moment.count_ * static_cast<double>(moment.l_re_.size()))) {
    for (size_t j = 0; j < moment.l_re_.size(); ++j) add_entry(j);
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.modulus < b.modulus; });
  }

  void run(size_t first, size_t n, const Visitor& visit) {
    for (size_t k = first; k < n;) {
      // A panel: t grows by an eighth at most, or by one block.
      const size_t end = std::min(n, std::max(k + k / 8, k + 64));
      begin_panel(end);
      for (size_t since = 0; k < end; ++k, ++since) {
        const Real t = step_ * static_cast<Real>(k);
        if (since % turns_ == 0) take_afresh(t);
        visit(k, at(t));
      }
    }
  }

 private:
  using Number = std::complex<Real>;

  struct Entry {
    Number l, weight;
    double modulus, of_weight, of_loss;  // of l; relative roundings
    double log_weight, phase;
    bool heavy;     // the power may be too large for a double, and the weight too small
    Number turn{};  // of one step, if it turns
  };
  // Σ weight·(1 + p·l) over the entries that turn.
  struct Linear {
    LongComplex one = 0, l = 0;
    double error_one = 0, error_l = 0;
  };

  double size_of_p(Real t) const { return std::hypot(static_cast<double>(pr_), static_cast<double>(t)); }

  void add_entry(size_t j) {
    const auto [lr, li, dr, di, wr, wi] = moment_.node_as<Real>(j);
    const double l_re = moment_.l_re_[j];
    const double l_im = moment_.l_im_[j];
    const double log_weight = moment_.log_w_[j];
    const double phase = moment_.w_phase_[j];
    const bool heavy = sizeof(Real) == sizeof(double) && static_cast<double>(pr_) * l_re > kHeavy;
    entries_.push_back({{lr, li},
                        {wr, wi},
                        std::hypot(l_re, l_im) * (1 + 1e-15),
                        moment_.of_weight_[j],
                        moment_.of_loss_[j],
                        log_weight,
                        phase,
                        heavy});
    const LongComplex weight(wr, wi);
    if (heavy)
      sum_d_ +=
          weight * LongComplex(lr, li) - (LongComplex(std::polar(std::exp(log_weight + l_re), phase + l_im)) - weight);
    else
      sum_d_ += weight * LongComplex(dr, di);
  }

  void begin_panel(size_t end) {
    const double largest_p = size_of_p(step_ * static_cast<Real>(end));
    const auto split = std::partition_point(entries_.begin(), entries_.end(),
                                            [&](const Entry& entry) { return entry.modulus * largest_p < kSmall; });
    small_ = {};
    small_.largest_p = largest_p;
    for (auto entry = entries_.begin(); entry != split; ++entry) add_small(*entry);
    // Adding these nodes one after the other.
    small_.error_per_p2 *= 1 + 0.01 * static_cast<double>(split - entries_.begin());
    large_.assign(split, entries_.end());
    for (Entry& entry : large_) entry.turn = std::exp(Number(0, sign_ * step_) * entry.l);
    linear_ = {};
    for (const Entry& entry : large_) {
      linear_.one += LongComplex(entry.weight);
      linear_.l += LongComplex(entry.weight) * LongComplex(entry.l);
      const double each =
          static_cast<double>(std::abs(entry.weight)) * (entry.of_weight + entry.of_loss + 6 * kUnit<Real>);
      linear_.error_one += each;
      linear_.error_l += each * entry.modulus;
    }
    left_out_ = 0;
  }

  void add_small(const Entry& entry) {
    const Real yr = entry.l.real() * small_.largest_p;
    const Real yi = entry.l.imag() * small_.largest_p;
    Real re = entry.weight.real();
    Real im = entry.weight.imag();
    for (size_t m = 1; m <= kTerms<Real>; ++m) {
      const Real inverse = Real(1) / static_cast<Real>(m);
      const Real next = (re * yr - im * yi) * inverse;
      im = (re * yi + im * yr) * inverse;
      re = next;
      if (m >= 2) small_.coefficients[m] += Number(re, im);
    }
    // |e2(y)| <= 0.83·|y|², |e2'(y)| <= 1.65·|y|; the rest is for y^k/k! and for adding up the polynomial.
    small_.error_per_p2 += static_cast<double>(std::abs(entry.weight)) * entry.modulus * entry.modulus *
                           (entry.of_weight + 2 * entry.of_loss + 32 * kUnit<Real>);
  }

  // The exponentials at t of all entries that turn. Those damped below any use are left out from here on.
  void take_afresh(Real t) {
    nodes_.clear();
    of_large_ = 0;
    double moduli = 0;
    const Number p(pr_, sign_ * t);
    const double block_p = size_of_p(t + step_ * static_cast<Real>(turns_));
    std::erase_if(large_, [&](const Entry& entry) {
      const Real yr = p.real() * entry.l.real() - p.imag() * entry.l.imag();
      const Real yi = p.real() * entry.l.imag() + p.imag() * entry.l.real();
      const double now = std::exp(entry.log_weight + static_cast<double>(yr));  // falls with t: arg w >= 0
      if (now < negligible_) {
        left_out_ += now;
        return true;
      }
      nodes_.add(entry.heavy ? std::polar<Real>(now, Real(entry.phase) + yi)
                             : entry.weight * std::polar<Real>(std::exp(yr), yi),
                 entry.turn);
      const double of_logarithm = entry.heavy ? 2 * std::abs(entry.log_weight) + 2 * std::abs(entry.phase) : 0;
      of_large_ += now * (entry.of_weight +
                          block_p * entry.modulus * (entry.of_loss + 3 * kUnit<Real>)+kUnit<Real> * (8 + of_logarithm) +
                          of_turning<Real>(turns_, static_cast<double>(step_), entry.modulus));
      moduli += now;
      return false;
    });
    of_large_ += nodes_.adding() * moduli;
  }

  Value at(Real t) {
    const Number p(pr_, sign_ * t);
    const LongComplex sum = LongComplex(small_.at(p)) + LongComplex(nodes_.sum_and_turn()) - linear_.one +
                            LongComplex(p) * (sum_d_ - linear_.l);
    const double size_p = size_of_p(t);
    const double error = moment_.excess_error_ + size_p * (moment_.excess_error_per_p_ + linear_.error_l) +
                         size_p * size_p * small_.error_per_p2 + of_large_ + linear_.error_one + left_out_;
    return moment_.finish_excess<Real>(static_cast<Real>(sum.real()), static_cast<Real>(sum.imag()), error);
  }

  const LineMoment& moment_;
  Real step_;
  size_t turns_;
  Real sign_, pr_;  // p = pr + i·sign·t
  double negligible_;
  std::vector<Entry> entries_;  // by modulus
  LongComplex sum_d_ = 0;
  // Of the panel.
  SmallTerms<Real> small_;
  std::vector<Entry> large_;
  Linear linear_;
  Turning<Real> nodes_;
  double left_out_ = 0;
  double of_large_ = 0;  // roundings of the nodes that turn
};

template <class Real>
void LineMoment::sweep(Real step, size_t n, const Visitor& visit) const {
  size_t end = 0;  // of the excess form
  while (end < n && (exact_ || in_excess_form(static_cast<double>(step) * static_cast<double>(end)))) ++end;
  // A short line loses no time node by node, and no digits.
  if (exact_ || (n < kShort && sizeof(Real) == sizeof(double)))
    for (size_t k = 0; k < end; ++k) visit(k, at<Real>(step * static_cast<Real>(k)));
  else
    ExcessSweep<Real>(*this, step, end).run(0, end, visit);
  sweep_direct(static_cast<double>(step), end, n, visit);
}

template void LineMoment::sweep<double>(double, size_t, const Visitor&) const;
template void LineMoment::sweep<long double>(long double, size_t, const Visitor&) const;

}  // namespace ghostshard::accountant
