#include "dp/planning/chain_decay.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace ghostshard::dp {
namespace {

constexpr int64_t kMostRows = 1024;
constexpr int64_t kDecays = 4096;

// F is quadratic in the s_p and λ·s_{p+1}: by places p in the chain, the sums over t and j of A_{t,j}², of
// A_{t,j}·A_{t,j+1} and of A_{t,j+1}², the last two within a chain.
struct Products {
  std::vector<double> own, both, next;
  double rows = 0;
};

Products products_of(int64_t chain, const BandWorkload& workload) {
  check_workload(workload);
  const auto steps = static_cast<int64_t>(workload.rates.size());
  if (!(chain >= 1 && chain <= steps)) {
    throw std::invalid_argument("a noise chain must have from 1 step to the run's " + std::to_string(steps) + ", got " +
                                std::to_string(chain));
  }
  const auto places = static_cast<size_t>(chain);
  Products sums{std::vector<double>(places, 0), std::vector<double>(places, 0), std::vector<double>(places, 0)};
  const int64_t stride = (steps + kMostRows - 1) / kMostRows;
  for (int64_t t = steps - 1; t >= 0; t -= stride) {
    double later = 0;  // A_{t,j+1}
    for (int64_t j = t; j >= 0; --j) {
      const auto place = static_cast<size_t>(j % chain);
      const double here = workload.rates[static_cast<size_t>(j)] + workload.momentum * later;
      sums.own[place] += here * here;
      if (place + 1 < places) {
        sums.both[place] += here * later;
        sums.next[place] += later * later;
      }
      later = here;
    }
    ++sums.rows;
  }
  return sums;
}

double error_of(const Products& sums, double decay) {
  double error = 0, column = 0;  // s_{p+1}², from the chain's end
  for (size_t p = sums.own.size(); p-- > 0;) {
    const double taken = decay * std::sqrt(column);
    column = 1 + decay * decay * column;
    error += column * sums.own[p] - 2 * std::sqrt(column) * taken * sums.both[p] + taken * taken * sums.next[p];
  }
  return error / sums.rows;
}

}  // namespace

double chain_error(int64_t steps_of_chain, double decay, const BandWorkload& workload) {
  if (!(decay >= 0 && decay <= 1)) {
    throw std::invalid_argument("a noise chain's decay must lie in [0, 1], got " + std::to_string(decay));
  }
  return error_of(products_of(steps_of_chain, workload), decay);
}

double optimal_chain_decay(int64_t steps_of_chain, const std::vector<WorkloadShare>& shares) {
  check_shares(shares);
  std::vector<Products> sums;
  for (const WorkloadShare& each : shares) sums.push_back(products_of(steps_of_chain, each.workload));
  if (steps_of_chain == 1) return 0;
  double best = 0, least = 0;
  for (int64_t k = 1; k <= kDecays; ++k) {
    const double decay = static_cast<double>(k) / static_cast<double>(kDecays);
    double error = 0;
    for (size_t i = 0; i < sums.size(); ++i) error += shares[i].share * std::log(error_of(sums[i], decay));
    if (k == 1 || error < least) best = decay, least = error;
  }
  return best;
}

}  // namespace ghostshard::dp
