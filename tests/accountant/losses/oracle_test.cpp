// Every kind of release beside the gradients against 40-digit arithmetic (oracle.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "accountant/accountant.h"
#include "tests/accountant/losses/oracle_rows.h"

namespace ghostshard::accountant {

void PrintTo(const OracleRow& row, std::ostream* out) {
  *out << row.adjacency << ' ' << row.events << ' ' << row.epsilon;
}

namespace {

std::unique_ptr<Accountant> charged(const OracleRow& row, const char* name) {
  auto engine = make_accountant(name, adjacency_from_string(row.adjacency));
  for (const nlohmann::json& event : nlohmann::json::parse(row.events)) engine->compose(event_from_json(event), 1);
  return engine;
}

class OracleRows : public testing::TestWithParam<OracleRow> {};

// Of one release delta is a sum over its table; the lower one lacks infinite losses. Two are composed on a grid, for
// which atoms of some mass are what is hardest from below.
TEST_P(OracleRows, TheBracketOfDeltaHoldsTheTruthAndIsNarrow) {
  for (const char* name : {"contour", "prv"}) {
    const DeltaBound bound = charged(GetParam(), name)->delta(Epsilon(GetParam().epsilon));
    EXPECT_GE(static_cast<long double>(bound.upper), GetParam().delta) << name;
    EXPECT_LE(static_cast<long double>(bound.lower), GetParam().delta) << name;
    const bool two = nlohmann::json::parse(GetParam().events).size() > 1;
    // A small delta beside a sampled Gaussian may be Rényi's, without a lower end: epsilon is searched with finer
    // grids.
    if (std::string(name) == "contour" && (!two || bound.upper > 5e-3))
      EXPECT_LE(bound.upper - bound.lower, (two ? 2e-3 : 2e-4) * bound.upper + (two ? 2e-4 : 2e-6));
  }
}

TEST_P(OracleRows, TheBracketOfEpsilonHoldsTheTruth) {
  if (!(GetParam().delta > 1e-12L)) return;
  // delta as a double is rounded: the epsilon there differs by no more than this.
  const double rounding = 1e-12;
  const Delta delta(static_cast<double>(GetParam().delta));
  for (const char* name : {"contour", "prv", "rdp"}) {
    const EpsilonBound bound = charged(GetParam(), name)->epsilon(delta, Effort::kQuick);
    EXPECT_GE(bound.upper, GetParam().epsilon - rounding) << name;
    EXPECT_LE(bound.lower, GetParam().epsilon + rounding) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Oracle, OracleRows, testing::ValuesIn(kOracleRows));

}  // namespace
}  // namespace ghostshard::accountant
