#include "tests/support/pairwise.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>

namespace ghostshard::tests {
namespace {

constexpr size_t kOpen = static_cast<size_t>(-1);  // a factor whose value a row has not chosen yet

using Row = std::vector<size_t>;
using Pair = std::tuple<size_t, size_t, size_t, size_t>;  // factor, value, later factor, value

// Chooses values one after the other, each time the one that meets most of the pairs that are still missing.
class RowBuilder {
 public:
  RowBuilder(const Factors& factors, const std::set<Pair>& missing) : factors_(factors), missing_(missing) {}

  // Completes the row; false if the rules leave no way to.
  bool complete(Row& row) const {
    const auto open = std::find(row.begin(), row.end(), kOpen);
    if (open == row.end()) return true;
    const auto factor = static_cast<size_t>(open - row.begin());
    for (const size_t value : best_first(row, factor)) {
      row[factor] = value;
      if (complete(row)) return true;
    }
    row[factor] = kOpen;
    return false;
  }

 private:
  std::vector<size_t> best_first(const Row& row, size_t factor) const {
    std::vector<std::pair<size_t, size_t>> gains;  // missing pairs met, value
    for (size_t value = 0; value < factors_.factors()[factor].values.size(); ++value) {
      size_t gain = 0;
      bool allowed = true;
      for (size_t other = 0; other < row.size(); ++other) {
        if (row[other] == kOpen) continue;
        allowed = allowed && factors_.allowed({factor, value}, {other, row[other]});
        gain += other < factor ? missing_.count({other, row[other], factor, value})
                               : missing_.count({factor, value, other, row[other]});
      }
      if (allowed) gains.emplace_back(gain, value);
    }
    std::stable_sort(gains.begin(), gains.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<size_t> values;
    values.reserve(gains.size());
    for (const auto& [gain, value] : gains) values.push_back(value);
    return values;
  }

  const Factors& factors_;
  const std::set<Pair>& missing_;
};

}  // namespace

FactorValue Factors::find(const std::string& factor, const std::string& value) const {
  for (size_t f = 0; f < factors_.size(); ++f) {
    if (factors_[f].name != factor) continue;
    const auto& values = factors_[f].values;
    const auto found = std::find(values.begin(), values.end(), value);
    if (found != values.end()) return {f, static_cast<size_t>(found - values.begin())};
  }
  throw std::invalid_argument("no factor " + factor + " with a value " + value);
}

void Factors::forbid(FactorValue first, FactorValue second, std::string why) {
  rules_.push_back({first, second, std::move(why)});
}

bool Factors::allowed(FactorValue first, FactorValue second) const {
  return std::none_of(rules_.begin(), rules_.end(), [&](const Forbidden& rule) {
    return (rule.first == first && rule.second == second) || (rule.first == second && rule.second == first);
  });
}

std::vector<std::vector<size_t>> Factors::rows() const {
  std::set<Pair> missing;
  for (size_t f = 0; f < factors_.size(); ++f) {
    for (size_t g = f + 1; g < factors_.size(); ++g) {
      for (size_t v = 0; v < factors_[f].values.size(); ++v) {
        for (size_t w = 0; w < factors_[g].values.size(); ++w) {
          if (allowed({f, v}, {g, w})) missing.insert({f, v, g, w});
        }
      }
    }
  }
  std::vector<Row> rows;
  while (!missing.empty()) {
    const auto [f, v, g, w] = *missing.begin();
    Row row(factors_.size(), kOpen);
    row[f] = v;
    row[g] = w;
    if (!RowBuilder(*this, missing).complete(row)) {
      throw std::logic_error("no row holds " + factors_[f].name + " " + factors_[f].values[v] + " with " +
                             factors_[g].name + " " + factors_[g].values[w]);
    }
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) missing.erase({a, row[a], b, row[b]});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Factors::name_of(const std::vector<size_t>& row) const {
  std::string name;
  for (size_t f = 0; f < row.size(); ++f) {
    const std::string& word = factors_[f].values[row[f]];
    if (!word.empty()) name += (name.empty() ? "" : "_") + word;
  }
  return name.empty() ? "ordinary" : name;
}

}  // namespace ghostshard::tests
