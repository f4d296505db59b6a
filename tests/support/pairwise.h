// Rows of factor values for a table of tests in which any two values of two factors meet, unless a rule forbids it.
// Most faults need at most two factors, and such a table grows with the product of the two largest factors alone
// (D. M. Cohen et al., The AETG System, IEEE Trans. Software Eng. 23(7), 1997).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ghostshard::tests {

struct Factor {
  std::string name;
  std::vector<std::string> values;  // the first is the ordinary one; an empty word leaves it out of a row's name
};

// A value of a factor, by index.
struct FactorValue {
  size_t factor = 0;
  size_t value = 0;
  bool operator==(const FactorValue&) const = default;
};

struct Forbidden {
  FactorValue first, second;
  std::string why;
};

class Factors {
 public:
  explicit Factors(std::vector<Factor> factors) : factors_(std::move(factors)) {}

  // std::invalid_argument if there is no such factor or value.
  FactorValue find(const std::string& factor, const std::string& value) const;
  void forbid(FactorValue first, FactorValue second, std::string why);
  bool allowed(FactorValue first, FactorValue second) const;

  // Each row holds a value of every factor, in their order. The same rows on every machine. std::logic_error if the
  // rules leave an allowed pair without any row.
  std::vector<std::vector<size_t>> rows() const;

  // The words of a row, joined by underscores; "ordinary" if all are left out.
  std::string name_of(const std::vector<size_t>& row) const;
  const std::vector<Factor>& factors() const { return factors_; }
  const std::vector<Forbidden>& rules() const { return rules_; }

 private:
  std::vector<Factor> factors_;
  std::vector<Forbidden> rules_;
};

}  // namespace ghostshard::tests
