// The integrand of a line of large losses alone: D(c + it) = Π M - Π B (large_losses.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/contour/contour_line.h"
#include "accountant/contour/large_line.h"
#include "accountant/gaussian/near_one.h"
#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr int64_t kMostMeshNodes = 400'000;  // of all phases
constexpr double kMostError = 0.1;           // of a logarithm: beyond, nothing is known but how large it is

// Of one node: Π M, and D = Π M·(1 - e^S), S = Σ T·log(B/M).
struct Node {
  Complex s = 0;
  double of_s = 0;    // its error
  double size_s = 0;  // sum of the moduli of its terms
  double most = 0;    // |D| <= Σ T·|G|: each M and each B is at most M(c)
};

}  // namespace

std::vector<LargeLosses> large_losses(std::span<const ComposedRelease> phases, double c, const LossCut& cut) {
  int64_t needed = 0;
  for (size_t i = 0; i < phases.size(); ++i)
    if (!cut.whole[i]) needed += LargeLosses::nodes_needed(phases[i], c, cut.log_s);
  if (needed > kMostMeshNodes) return {};
  std::vector<LargeLosses> large;
  for (size_t i = 0; i < phases.size(); ++i)
    if (!cut.whole[i]) large.emplace_back(phases[i], c, cut.log_s);
  return large;
}

// Of both sweeps. That of a whole moment in its excess form takes the least losses together, and leaves out what is
// damped (contour_sweep.cpp).
double work_of_large(std::span<const ComposedRelease> phases, std::span<const PhaseMoment> moments,
                     std::span<const LargeLosses> large, const LossCut& cut, double step, size_t n) {
  double sum = 0;
  size_t next = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const auto all = static_cast<double>(moments[i].nodes() * n);
    const bool in_excess = static_cast<double>(moments[i].log_scale()) < phases[i].count &&
                           phases[i].release.q * step * static_cast<double>(n) < 1;
    const double of_cut = cut.whole[i] ? all : large[next++].work(step, n);
    sum += static_cast<double>(kCostOfNode * static_cast<int64_t>(n)) + of_cut +
           (in_excess ? std::min(all, 4 * of_cut) : all);
  }
  return sum;
}

double log_rest_of(std::span<const LargeLosses> large, double t) {
  double sum = 0;
  double above = 0;  // by how much the M may exceed e^log_m, by which they are divided
  for (const LargeLosses& one : large) {
    sum += one.count() * std::exp(one.log_rest(t));
    above += one.count() * one.log_m_error();
  }
  return std::log(sum * (1 + 1e-12) + 1e-300) + 1.01 * above;
}

void ContourLine::take_large(std::span<const PhaseMoment> moments, std::span<const LargeLosses> large, size_t n) {
  integrand_.assign(n, 0);
  error_.assign(n, 0);
  std::vector<Node> nodes(n);
  std::vector<double> sizes(n, 0);
  std::vector<LineMoment::Value> of_one(n);
  double above = 0;
  for (const LargeLosses& cut : large) above += 1.01 * cut.count() * cut.log_m_error();
  const auto take_part = [&](size_t first, size_t end) {
    auto next = large.begin();
    for (size_t i = 0; i < moments.size(); ++i) {
      moments[i].sweep<double>(step<double>(), first, end, [&](size_t k, const LineMoment::Value& value) {
        of_one[k] = value;
        integrand_[k] += value.log_power;
        error_[k] += value.relative_error * (1 + error_[k]);  // (1+a)(1+b) - 1 <= a + b(1+a)
        sizes[k] += std::abs(static_cast<double>(value.log_power.real())) +
                    std::abs(static_cast<double>(value.log_power.imag()));
      });
      if (cut_->whole[i]) continue;
      const LargeLosses& cut = *next++;
      const double count = cut.count();
      cut.sweep(step<double>(), first, end, [&](size_t k, Complex g, double error) {
        Node& node = nodes[k];
        const auto& [log_power, relative_error] = of_one[k];
        const double size_g = std::abs(g.real()) + std::abs(g.imag());
        node.most += count * (size_g + error) * (1 + 4 * kRounding);
        if (!(relative_error < kMostError)) {
          node.of_s = std::numeric_limits<double>::infinity();
          return;
        }
        // M of one execution. Of T of them together |log| errs by 1.1 times the relative error at most.
        const Complex log_m(log_power / static_cast<long double>(count));
        const double of_m =
            1.1 * relative_error / count + kRounding * (8 + 2 * std::abs(log_m.real()) + 2 * std::abs(log_m.imag()));
        const Complex ratio = g * std::exp(-log_m);
        const double of_ratio =
            error * std::exp(-log_m.real()) * 1.01 + (std::abs(ratio.real()) + std::abs(ratio.imag())) * 1.2 * of_m;
        const Complex term = count * log_of_one_and(-ratio);
        const double least = std::abs(1.0 - ratio) * (1 - 8 * kRounding) - of_ratio;  // of |B/M|
        if (!(least > 0)) {
          node.of_s = std::numeric_limits<double>::infinity();
          return;
        }
        const double size = std::abs(term.real()) + std::abs(term.imag());
        node.s += term;
        node.size_s += size;
        node.of_s += count * (of_ratio + 8 * kRounding * (std::abs(ratio.real()) + std::abs(ratio.imag()))) / least +
                     4 * kRounding * size;
      });
    }
  };
  size_t meshes = 0;
  for (const PhaseMoment& moment : moments) meshes += moment.nodes();
  in_parts(n, kNodesOfAPart, static_cast<double>(meshes), take_part);
  const double adding = static_cast<double>(moments.size()) * kRounding;
  for (size_t k = 0; k < n; ++k) {
    const Node& node = nodes[k];
    const double t = step<double>() * static_cast<double>(k);
    const double over = 1 / (std::hypot(c_, t) * std::hypot(1 + c_, t)) * (1 + 8 * kRounding);
    const double most = node.most * std::exp(above) * over;
    const double of_s = node.of_s + adding * node.size_s;
    const double size = sizes[k];
    const double of_power = error_[k] + kRounding * (16 + 4 * size + adding / kRounding * size) * (1 + error_[k]);
    if (!(of_s < kMostError && of_power < kMostError)) {
      integrand_[k] = 0;
      error_[k] = most * (1 + 8 * kRounding);
      continue;
    }
    const Complex power(over_z(integrand_[k], k));
    const Complex share = -exp_less_one(node.s);
    const double growth = std::exp(std::max(0.0, node.s.real()));
    const double of_share =
        std::exp(node.s.real()) * std::expm1(of_s) * 1.01 + 12 * kRounding * std::abs(node.s) * growth;
    const Complex d = power * share;
    integrand_[k] = std::complex<long double>(d);
    const double size_power = std::abs(power.real()) + std::abs(power.imag());
    const double size_d = std::abs(d.real()) + std::abs(d.imag());
    error_[k] = (size_power * (1 + of_power) * of_share + size_d * (of_power + 4 * kRounding)) * (1 + 16 * kRounding);
    if (!(error_[k] < most)) {
      integrand_[k] = 0;
      error_[k] = most * (1 + 8 * kRounding);
    }
  }
}

}  // namespace ghostshard::accountant
