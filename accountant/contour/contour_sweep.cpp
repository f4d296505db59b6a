// M(c + it) at equidistant t, by multiplication from one to the next: exponentials and sines are taken once in some
// steps. Nodes that are damped below any use are left out from there on, and counted.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "accountant/contour/contour_moments.h"
#include "accountant/contour/turning.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
using LongComplex = std::complex<long double>;
constexpr size_t kShort = 24;
constexpr double kDamped = 1e-24;  // of the sum, divided by the count: smaller nodes are left out
double modulus_of(double re, double im) { return std::sqrt(re * re + im * im); }  // of numbers that do not overflow
// The same, rounded up: three roundings, and squares that underflow.
double modulus_at_most(double re, double im) { return modulus_of(re, im) * (1 + 1e-15) + 1e-150; }

// Terms e2(y) = e^y - 1 - y with |y| < kSmall by their series, all nodes together: one polynomial in p.
constexpr double kSmall = 0.5;
template <class Real>
constexpr size_t kTerms = sizeof(Real) > 8 ? 18 : 15;  // 0.5^k/k! after the last is below the rounding of 0.5²/2
template <class Real>
struct SmallTerms {
  std::array<Real, 2 * (kTerms<Real> + 1)> coefficients{};  // of (p/largest_p)^k, re and im; those of k < 2 are none
  Real largest_p = 1;
  double error_per_p2 = 0;

  // At kTurnsAtOnce places p.
  TurnSums<Real> at(Real re, const Real* im) const {
    TurnSums<Real> x;
    TurnSums<Real> sums;
    for (size_t i = 0; i < kTurnsAtOnce; ++i) {
      x.re[i] = re / largest_p;
      x.im[i] = im[i] / largest_p;
    }
    horner_lanes(coefficients.data(), kTerms<Real>, x.re, x.im, sums.re, sums.im);
    for (size_t i = 0; i < kTurnsAtOnce; ++i)
      times(sums.re[i], sums.im[i], x.re[i] * x.re[i] - x.im[i] * x.im[i], 2 * x.re[i] * x.im[i]);
    return sums;
  }
};

}  // namespace

void LineMoment::sweep_direct(double step, size_t first, size_t n, const Visitor& visit) const {
  if (first >= n) return;
  const size_t size = l_re_.size();
  const double sign = direction_ == Direction::kRemove ? 1 : -1;
  Turning<double> nodes(n - first);
  std::vector<size_t> kept(size);
  std::iota(kept.begin(), kept.end(), size_t{0});
  std::vector<Turning<double>::Factors> factors(size);
  double of_turns = 0;  // of the sum of the nodes; none grows, since arg w >= 0
  for (size_t j = 0; j < size; ++j) {
    factors[j] = nodes.factors(step, {-sign * l_im_[j], sign * l_re_[j]});
    const double modulus = std::abs(tilted_re_[j]) + std::abs(tilted_im_[j]);
    of_turns += modulus * (8 * kUnit<double> + nodes.rounding(step, std::abs(l_re_[j]) + std::abs(l_im_[j])));
  }
  of_turns *= 1.01;
  double left_out = 0;
  const double negligible = kDamped / (count_ * static_cast<double>(size));
  for (size_t k = first, since = 0; k < n; k += kTurnsAtOnce, since += kTurnsAtOnce) {
    if (since % nodes.steps() == 0) {
      const double t = step * static_cast<double>(k);
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
      nodes.begin();
    }
    TurnSums<double> sums;
    nodes.sums_and_turn(sums);
    for (size_t i = 0; i < kTurnsAtOnce && k + i < n; ++i)
      visit(k + i,
            finish({sums.re[i], sums.im[i]},
                   direct_error_ + step * static_cast<double>(k + i) * direct_error_per_p_ + of_turns + left_out));
  }
}

// M - 1 = Σ weight·(e2(p·l) + p·d). Where |p·l| is small for all t of a panel: SmallTerms. Elsewhere e^(p·l) by
// turning, and 1 + p·l, which is linear in p, from two sums. Every constant of an error below is that of a rounding
// counted out once (Higham 2002, §3) and doubled.
template <class Real>
class LineMoment::ExcessSweep {
 public:
  // n: nodes that are to be visited.
  ExcessSweep(const LineMoment& moment, Real step, size_t n)
      : moment_(moment),
        step_(step),
        sign_(moment.direction_ == Direction::kRemove ? 1 : -1),
        pr_(moment.direction_ == Direction::kRemove ? 1 + Real(moment.c_) : -Real(moment.c_)),
        negligible_(kDamped / (moment.count_ * static_cast<double>(moment.l_re_.size()))),
        nodes_(n) {
    for (size_t j = 0; j < moment.l_re_.size(); ++j) add_entry(j);
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.modulus < b.modulus; });
  }

  void run(size_t first, size_t n, const Visitor& visit) {
    for (size_t k = first; k < n;) {
      // A panel: t grows by half at most, or by one block.
      const size_t end = std::min(n, std::max(k + k / 2, k + 64));
      begin_panel(end);
      for (size_t since = 0; k + since < end; since += kTurnsAtOnce) {
        if (since % nodes_.steps() == 0) take_afresh(step_ * static_cast<Real>(k + since));
        visit_next(k + since, end, visit);
      }
      k = end;
    }
  }

 private:
  using Number = std::complex<Real>;

  struct Entry {
    Number l, weight;
    double size;                         // of the weight
    double modulus, of_weight, of_loss;  // of l; relative roundings
    double log_weight, phase;
    bool heavy;  // the power may be too large for a double, and the weight too small
    bool turns = false;
    typename Turning<Real>::Factors factors{};  // if it turns
  };
  // Σ weight·(1 + p·l) over the entries that turn.
  struct Linear {
    LongComplex one = 0, l = 0;
    double error_one = 0, error_l = 0;
  };

  double size_of_p(Real t) const { return modulus_of(static_cast<double>(pr_), static_cast<double>(t)); }

  void add_entry(size_t j) {
    const auto [lr, li, dr, di, wr, wi] = moment_.node_as<Real>(j);
    const double l_re = moment_.l_re_[j];
    const double l_im = moment_.l_im_[j];
    const double log_weight = moment_.log_w_[j];
    const double phase = moment_.w_phase_[j];
    const bool heavy = sizeof(Real) == sizeof(double) && static_cast<double>(pr_) * l_re > kHeavy;
    entries_.push_back({{lr, li},
                        {wr, wi},
                        modulus_at_most(static_cast<double>(wr), static_cast<double>(wi)),
                        modulus_at_most(l_re, l_im),
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
      sum_d_ += LongComplex(dr, di);
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
    for (auto entry = split; entry != entries_.end(); ++entry)
      if (!std::exchange(entry->turns, true))
        entry->factors = nodes_.factors(step_, {-sign_ * entry->l.imag(), sign_ * entry->l.real()});
    large_.clear();
    for (auto entry = split; entry != entries_.end(); ++entry) large_.push_back(&*entry);
    linear_ = {};
    for (const Entry* each_entry : large_) {
      const Entry& entry = *each_entry;
      linear_.one += LongComplex(entry.weight);
      linear_.l += LongComplex(entry.weight) * LongComplex(entry.l);
      const double each = entry.size * (entry.of_weight + entry.of_loss + 6 * kUnit<Real>);
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
      if (m < 2) continue;
      small_.coefficients[2 * m] += re;
      small_.coefficients[2 * m + 1] += im;
    }
    // |e2(y)| <= 0.83·|y|², |e2'(y)| <= 1.65·|y|; the rest is for y^k/k! and for adding up the polynomial.
    small_.error_per_p2 +=
        entry.size * entry.modulus * entry.modulus * (entry.of_weight + 2 * entry.of_loss + 32 * kUnit<Real>);
  }

  // The exponentials at t of all entries that turn. Those damped below any use are left out from here on.
  void take_afresh(Real t) {
    nodes_.clear();
    of_large_ = 0;
    double moduli = 0;
    const Number p(pr_, sign_ * t);
    const double block_p = size_of_p(t + step_ * static_cast<Real>(nodes_.steps()));
    std::erase_if(large_, [&](const Entry* each_entry) {
      const Entry& entry = *each_entry;
      const Real yr = p.real() * entry.l.real() - p.imag() * entry.l.imag();
      const Real yi = p.real() * entry.l.imag() + p.imag() * entry.l.real();
      const double now = std::exp(entry.log_weight + static_cast<double>(yr));  // falls with t: arg w >= 0
      if (now < negligible_) {
        left_out_ += now;
        return true;
      }
      nodes_.add(entry.heavy ? std::polar<Real>(now, Real(entry.phase) + yi)
                             : entry.weight * std::polar<Real>(std::exp(yr), yi),
                 entry.factors);
      const double of_logarithm = entry.heavy ? 2 * std::abs(entry.log_weight) + 2 * std::abs(entry.phase) : 0;
      of_large_ += now * (entry.of_weight +
                          block_p * entry.modulus * (entry.of_loss + 3 * kUnit<Real>)+kUnit<Real> * (8 + of_logarithm) +
                          nodes_.rounding(static_cast<double>(step_), entry.modulus));
      moduli += now;
      return false;
    });
    nodes_.begin();
    of_large_ += nodes_.adding() * moduli;
  }

  void visit_next(size_t k, size_t end, const Visitor& visit) {
    Real t[kTurnsAtOnce];
    Real pi[kTurnsAtOnce];
    for (size_t i = 0; i < kTurnsAtOnce; ++i) {
      t[i] = step_ * static_cast<Real>(k + i);
      pi[i] = sign_ * t[i];
    }
    const TurnSums<Real> small = small_.at(pr_, pi);
    TurnSums<Real> large;
    nodes_.sums_and_turn(large);
    const long double slope_re = sum_d_.real() - linear_.l.real();
    const long double slope_im = sum_d_.imag() - linear_.l.imag();
    for (size_t i = 0; i < kTurnsAtOnce && k + i < end; ++i) {
      const long double re = static_cast<long double>(small.re[i]) + large.re[i] - linear_.one.real() +
                             (pr_ * slope_re - pi[i] * slope_im);
      const long double im = static_cast<long double>(small.im[i]) + large.im[i] - linear_.one.imag() +
                             (pr_ * slope_im + pi[i] * slope_re);
      const double size_p = size_of_p(t[i]);
      const double error = moment_.excess_error_ + size_p * (moment_.excess_error_per_p_ + linear_.error_l) +
                           size_p * size_p * small_.error_per_p2 + of_large_ + linear_.error_one + left_out_;
      visit(k + i, moment_.finish_excess<Real>(static_cast<Real>(re), static_cast<Real>(im), error));
    }
  }

  const LineMoment& moment_;
  Real step_;
  Real sign_, pr_;  // p = pr + i·sign·t
  double negligible_;
  std::vector<Entry> entries_;  // by modulus
  LongComplex sum_d_ = 0;
  // Of the panel.
  SmallTerms<Real> small_;
  std::vector<const Entry*> large_;
  Linear linear_;
  Turning<Real> nodes_;
  double left_out_ = 0;
  double of_large_ = 0;  // roundings of the nodes that turn
};

template <class Real>
void LineMoment::sweep(Real step, size_t first, size_t n, const Visitor& visit) const {
  size_t end = n;  // of the excess form, which holds up to some t
  if (!exact_)
    for (size_t low = first; low < end;) {
      const size_t middle = low + (end - low) / 2;
      if (in_excess_form(static_cast<double>(step) * static_cast<double>(middle)))
        low = middle + 1;
      else
        end = middle;
    }
  // A short line loses no time node by node, and no digits.
  if (exact_ || (n - first < kShort && sizeof(Real) == sizeof(double)))
    for (size_t k = first; k < end; ++k) visit(k, at<Real>(step * static_cast<Real>(k)));
  else if (first < end)
    ExcessSweep<Real>(*this, step, end - first).run(first, end, visit);
  sweep_direct(static_cast<double>(step), end, n, visit);
}

template void LineMoment::sweep<double>(double, size_t, size_t, const Visitor&) const;
template void LineMoment::sweep<long double>(long double, size_t, size_t, const Visitor&) const;

}  // namespace ghostshard::accountant
