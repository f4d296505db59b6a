#include "accountant/contour/pair_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ghostshard::accountant {
namespace {

constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kLeastPivot = 1e-9;
constexpr int kRefinements = 3;

// In the order of pair_misses.
template <class Real>
class Products {
 public:
  explicit Products(const Degrees& degrees) : degrees_(degrees), of_x_(degrees.x + 1), of_y_(degrees.y + 1) {}
  void operator()(Real x, Real y, Real* out) {
    chebyshev(x, of_x_);
    chebyshev(y, of_y_);
    for (size_t m = 0; m <= degrees_.x; ++m)
      for (size_t n = 0; n <= degrees_.last_y(m); ++n) *out++ = of_x_[m] * of_y_[n];
  }

 private:
  static void chebyshev(Real at, std::vector<Real>& values) {
    values[0] = 1;
    values[1] = at;
    for (size_t m = 2; m < values.size(); ++m) values[m] = 2 * at * values[m - 1] - values[m - 2];
  }
  Degrees degrees_;
  std::vector<Real> of_x_, of_y_;
};

// A row for each of these masses.
struct Rows {
  size_t width;
  std::vector<double> values;
  size_t size() const { return values.size() / width; }
  double* row(size_t i) { return values.data() + i * width; }
  const double* row(size_t i) const { return values.data() + i * width; }
};

// Takes weights to 0, all moments kept, until no more than rows.width are left: the table of the simplex method, whose
// rows are the basic masses. A mass outside the basis is taken out, or changed for a basic one, until the first weight
// is 0.
class Reduction {
 public:
  Reduction(const Rows& rows, std::vector<double>& weights) : weights_(weights), masses_(rows.size()) {
    // Transposed: an equation for each moment, a column for each mass.
    for (size_t r = 0; r < rows.width; ++r) {
      auto& equation = table_.emplace_back(masses_);
      for (size_t j = 0; j < masses_; ++j) equation[j] = rows.row(j)[r];
    }
    is_basic_.assign(masses_, false);
  }

  void run() {
    for (size_t r = 0; r < table_.size();) {
      const auto largest = std::max_element(table_[r].begin(), table_[r].end(),
                                            [](double one, double other) { return std::abs(one) < std::abs(other); });
      if (std::abs(*largest) < kLeastPivot) {  // follows from the others
        std::swap(table_[r], table_.back());
        table_.pop_back();
        continue;
      }
      basis_.push_back(static_cast<size_t>(largest - table_[r].begin()));
      pivot(r, basis_.back());
      ++r;
    }
    for (const size_t column : basis_) is_basic_[column] = true;
    for (size_t j = 0; j < masses_; ++j)
      if (!is_basic_[j] && weights_[j] > 0) take_out(j);
  }

 private:
  // Equation r solved for this column, which leaves all others.
  void pivot(size_t r, size_t column) {
    const double factor = 1 / table_[r][column];
    for (double& value : table_[r]) value *= factor;
    for (size_t other = 0; other < table_.size(); ++other) {
      const double times = table_[other][column];
      if (other == r || times == 0) continue;
      double* const to = table_[other].data();
      const double* const from = table_[r].data();
      for (size_t j = 0; j < masses_; ++j) to[j] -= times * from[j];
    }
  }

  // How far the weight of j may go down (or up) before a basic one is 0.
  std::pair<double, size_t> limit(size_t j, double sign) const {
    double least = std::numeric_limits<double>::infinity();
    size_t at = table_.size();
    for (size_t r = 0; r < table_.size(); ++r) {
      const double change = sign * table_[r][j];  // of the basic weight, as that of j moves by sign
      if (change > kLeastPivot && weights_[basis_[r]] / change < least) {
        least = weights_[basis_[r]] / change;
        at = r;
      }
    }
    return {least, at};
  }

  void take_out(size_t j) {
    auto [down, row_down] = limit(j, -1);
    const auto [up, row_up] = limit(j, 1);
    const bool leaves = weights_[j] <= down;
    if (leaves) down = weights_[j];
    // The larger pivot is the better one.
    const bool rises = !leaves && row_up < table_.size() &&
                       (row_down >= table_.size() || std::abs(table_[row_up][j]) > std::abs(table_[row_down][j]));
    const double step = rises ? -up : down;
    const size_t row = rises ? row_up : row_down;
    for (size_t r = 0; r < table_.size(); ++r)
      weights_[basis_[r]] = std::max(0.0, weights_[basis_[r]] + step * table_[r][j]);
    weights_[j] -= step;
    if (leaves || row >= table_.size()) {
      weights_[j] = 0;
      return;
    }
    weights_[basis_[row]] = 0;
    is_basic_[basis_[row]] = false;
    is_basic_[j] = true;
    basis_[row] = j;
    pivot(row, j);
  }

  std::vector<double>& weights_;
  size_t masses_;
  std::vector<std::vector<double>> table_;
  std::vector<size_t> basis_;  // of each equation
  std::vector<bool> is_basic_;
};

// One pass of halving: groups of neighbours in `kept`, twice as many as moments, of which at most half stay.
std::vector<Chosen> halved(const Rows& all, const std::vector<Chosen>& kept) {
  const size_t groups = std::min(kept.size(), 2 * all.width);
  Rows rows{all.width, std::vector<double>(groups * all.width, 0)};
  std::vector<double> before(groups, 0);
  const auto group_of = [&](size_t i) { return i * groups / kept.size(); };
  for (size_t i = 0; i < kept.size(); ++i) {
    double* const sum = rows.row(group_of(i));
    const double* const from = all.row(kept[i].index);
    for (size_t m = 0; m < all.width; ++m) sum[m] += kept[i].weight * from[m];
    before[group_of(i)] += kept[i].weight;
  }
  for (size_t g = 0; g < groups; ++g)
    for (size_t m = 0; m < all.width; ++m) rows.row(g)[m] /= before[g];
  std::vector<double> after = before;
  Reduction(rows, after).run();
  std::vector<Chosen> left;
  for (size_t i = 0; i < kept.size(); ++i) {
    const size_t g = group_of(i);
    if (after[g] > 0) left.push_back({kept[i].index, kept[i].weight * (after[g] / before[g])});
  }
  return left;
}

// Moments of the measure less those of the rule.
std::vector<long double> differences(std::span<const PairMass> measure, std::span<const Chosen> rule,
                                     const Degrees& degrees) {
  std::vector<long double> sums(degrees.products(), 0);
  Products<long double> products(degrees);
  std::vector<long double> terms(sums.size());
  std::vector<long double> weights(measure.size());
  for (size_t i = 0; i < measure.size(); ++i) weights[i] = measure[i].weight;
  for (const Chosen& chosen : rule) weights[chosen.index] -= chosen.weight;
  for (size_t i = 0; i < measure.size(); ++i) {
    products(measure[i].x, measure[i].y, terms.data());
    for (size_t m = 0; m < sums.size(); ++m) sums[m] += weights[i] * terms[m];
  }
  return sums;
}

// Solves rows^T·change = wanted, as far as the rows reach; by elimination with the largest pivots.
std::vector<double> solved(const Rows& rows, const std::vector<long double>& wanted) {
  const size_t n = rows.size();
  std::vector<std::vector<double>> table;
  for (size_t r = 0; r < rows.width; ++r) {
    auto& equation = table.emplace_back(n + 1);
    for (size_t j = 0; j < n; ++j) equation[j] = rows.row(j)[r];
    equation[n] = static_cast<double>(wanted[r]);
  }
  std::vector<double> change(n, 0);
  std::vector<size_t> pivots;
  for (size_t j = 0; j < n && pivots.size() < table.size(); ++j) {
    size_t best = pivots.size();
    for (size_t r = best; r < table.size(); ++r)
      if (std::abs(table[r][j]) > std::abs(table[best][j])) best = r;
    if (std::abs(table[best][j]) < kLeastPivot) continue;
    std::swap(table[best], table[pivots.size()]);
    const auto& from = table[pivots.size()];
    for (size_t r = pivots.size() + 1; r < table.size(); ++r) {
      const double times = table[r][j] / from[j];
      for (size_t k = j; k <= n; ++k) table[r][k] -= times * from[k];
    }
    pivots.push_back(j);
  }
  for (size_t r = pivots.size(); r-- > 0;) {
    double value = table[r][n];
    for (size_t k = pivots[r] + 1; k < n; ++k) value -= table[r][k] * change[k];
    change[pivots[r]] = value / table[r][pivots[r]];
  }
  return change;
}

}  // namespace

size_t Degrees::products() const {
  size_t all = 0;
  for (size_t m = 0; m <= x; ++m) all += last_y(m) + 1;
  return all;
}

std::vector<Chosen> pair_rule(std::span<const PairMass> measure, const Degrees& degrees) {
  Rows all{degrees.products(), {}};
  all.values.resize(measure.size() * all.width);
  Products<double> products(degrees);
  std::vector<Chosen> kept;
  for (size_t i = 0; i < measure.size(); ++i) {
    products(static_cast<double>(measure[i].x), static_cast<double>(measure[i].y), all.row(i));
    kept.push_back({i, measure[i].weight});
  }
  while (kept.size() > all.width) {
    std::vector<Chosen> left = halved(all, kept);
    const bool fewer = left.size() < kept.size();
    kept = std::move(left);
    if (!fewer) break;
  }
  Rows rows{all.width, {}};
  for (const Chosen& chosen : kept)
    rows.values.insert(rows.values.end(), all.row(chosen.index), all.row(chosen.index) + all.width);
  for (int i = 0; i < kRefinements; ++i) {
    const std::vector<double> change = solved(rows, differences(measure, kept, degrees));
    for (size_t j = 0; j < kept.size(); ++j)
      if (kept[j].weight + change[j] > 0) kept[j].weight += change[j];
  }
  return kept;
}

std::vector<double> pair_misses(std::span<const PairMass> measure, std::span<const Chosen> rule, const Degrees& degrees,
                                double of_place) {
  const std::vector<long double> sums = differences(measure, rule, degrees);
  double weights = 0;
  for (const PairMass& mass : measure) weights += mass.weight;
  for (const Chosen& chosen : rule) weights += chosen.weight;
  const auto terms = static_cast<double>(measure.size() + 1);
  std::vector<double> found;
  for (size_t m = 0; m <= degrees.x; ++m)
    for (size_t n = 0; n <= degrees.last_y(m); ++n) {
      // As for the rule in one variable (gauss_rule.cpp), for each factor.
      const double of_term = static_cast<double>(m * m + n * n) * (of_place + 4) + 10;
      found.push_back(
          (std::abs(static_cast<double>(sums[found.size()])) + weights * kLongRounding * (of_term + terms)) *
          (1 + 1e-14));
    }
  return found;
}

}  // namespace ghostshard::accountant
