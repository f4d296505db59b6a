// rho, tuning, the trade-off curve and reconstruction against 40-digit arithmetic (bounds_oracle.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/tradeoff.h"
#include "accountant/zcdp.h"
#include "tests/accountant/bounds_oracle_rows.h"

namespace ghostshard::accountant {

void PrintTo(const RhoRow& row, std::ostream* out) { *out << row.adjacency << ' ' << row.run << ' ' << row.omega; }
void PrintTo(const TuningRow& row, std::ostream* out) { *out << row.event << ' ' << row.epsilon; }
void PrintTo(const TradeoffRow& row, std::ostream* out) { *out << row.run << ' ' << row.rate; }

namespace {

std::vector<std::pair<Event, int64_t>> releases(const char* run) {
  std::vector<std::pair<Event, int64_t>> found;
  for (const nlohmann::json& one : nlohmann::json::parse(run))
    found.emplace_back(event_from_json(one[0]), one[1].get<int64_t>());
  return found;
}

class RhoOracle : public testing::TestWithParam<RhoRow> {};

// To 1e-5 of itself, from above.
TEST_P(RhoOracle, RhoIsAtLeastTheTruthAndNoMuchLarger) {
  const RhoRow& row = GetParam();
  const std::optional<double> omega = row.omega > 0 ? std::optional(row.omega) : std::nullopt;
  const double found = concentrated_bound(releases(row.run), adjacency_from_string(row.adjacency), omega).rho;
  EXPECT_GE(static_cast<long double>(found), row.rho);
  EXPECT_LE(static_cast<long double>(found), row.rho * (1 + (omega ? 2e-5L : 1e-13L)));
}

INSTANTIATE_TEST_SUITE_P(Oracle, RhoOracle, testing::ValuesIn(kRhoRows));

class TuningOracle : public testing::TestWithParam<TuningRow> {};

// The bound holds for whatever is tuned, hence for this mechanism.
TEST_P(TuningOracle, NoMechanismCostsMoreThanTheBound) {
  for (const char* name : {"contour", "rdp"}) {
    const auto engine = make_accountant(name, Adjacency::kZeroOut);
    engine->compose(event_from_json(nlohmann::json::parse(GetParam().event)), 1);
    EXPECT_GE(static_cast<long double>(engine->delta(Epsilon(GetParam().epsilon)).upper), GetParam().delta) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Oracle, TuningOracle, testing::ValuesIn(kTuningRows));

class TradeoffOracle : public testing::TestWithParam<TradeoffRow> {};

// The same number bounds a guess of a unit's content at this prior.
TEST_P(TradeoffOracle, ThePowerIsAtLeastTheTruthAndNoMuchLarger) {
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  for (const auto& [event, count] : releases(GetParam().run)) engine->compose(event, count);
  const double found = most_powerful_test(*engine, GetParam().rate).at_most;
  EXPECT_GE(static_cast<long double>(found), GetParam().power);
  EXPECT_LE(static_cast<long double>(found), GetParam().power * (1 + 1e-6L));
}

INSTANTIATE_TEST_SUITE_P(Oracle, TradeoffOracle, testing::ValuesIn(kTradeoffRows));

}  // namespace
}  // namespace ghostshard::accountant
