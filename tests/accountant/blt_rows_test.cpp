// The price of each step with noise from buffers: against whole matrices, over every set of a unit's steps and every
// direction of what it contributes; the rows that a ledger's lines are, and what its report says of them.
#include "accountant/blt_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "accountant/accountant.h"
#include "accountant/receipt.h"
#include "accountant/report.h"
#include "accountant/report_verify.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Numbers = std::vector<double>;

struct Case {
  Numbers outputs, decays;
  int64_t separation, steps;
};

const Case kCases[] = {{{0.3}, {0.9}, 3, 9},
                       {{0.25, 0.2}, {0.97F, 0.4F}, 2, 9},
                       {{1.0, 0.5, 0.0}, {0.5, 0.99, 0.1}, 4, 10},
                       {{0.2}, {0.0}, 1, 6},
                       {{0.4, 0.1}, {0.8, 0.3}, 20, 7}};

BltRows rows_of(const Case& c) { return {c.outputs, c.decays, c.separation, c.steps}; }

// C[r][u] = c_{r−u}, by the definition.
std::vector<Numbers> matrix_of(const Case& c) {
  const auto steps = static_cast<size_t>(c.steps);
  std::vector<Numbers> matrix(steps, Numbers(steps, 0));
  for (size_t r = 0; r < steps; ++r) {
    matrix[r][r] = 1;
    for (size_t u = 0; u < r; ++u) {
      for (size_t j = 0; j < c.outputs.size(); ++j) {
        matrix[r][u] += c.outputs[j] * std::pow(c.decays[j], static_cast<double>(r - u - 1));
      }
    }
  }
  return matrix;
}

// The most of Σ_{r<rows} (Σ_u v_u·C[r][u])² over v in {-1, 0, 1} on these steps.
double most_moved(const std::vector<Numbers>& matrix, const std::vector<size_t>& taken, size_t rows) {
  double most = 0;
  std::vector<int> v(taken.size(), -1);
  for (bool done = false; !done;) {
    double squares = 0;
    for (size_t r = 0; r < rows; ++r) {
      double moved = 0;
      for (size_t i = 0; i < taken.size(); ++i) moved += v[i] * matrix[r][taken[i]];
      squares += moved * moved;
    }
    most = std::max(most, squares);
    done = true;
    for (size_t i = 0; i < v.size() && done; ++i) {
      done = v[i] == 1;
      v[i] = v[i] == 1 ? -1 : v[i] + 1;
    }
  }
  return most;
}

// The squared shift over deviation that the first `count` rows are charged, if sigma is 1.
double charged_square(const BltRows& rows, int64_t count) {
  double sum = 0;
  for (int64_t r = 0; r < count; ++r) sum += std::pow(rows.charged(r, NoiseMultiplier(1)).value(), -2);
  return sum;
}

// Every group of units, every set of its steps, every sign, and a run that ends after any row.
TEST(BltRows, NoSetOfAUnitsStepsMovesMoreThanIsCharged) {
  for (const Case& c : kCases) {
    const BltRows rows = rows_of(c);
    const auto matrix = matrix_of(c);
    for (int64_t count = 1; count <= c.steps; ++count) {
      const double charged = charged_square(rows, count) * rows.norm() * rows.norm();
      double most = 0;
      for (int64_t group = 0; group < std::min(c.separation, count); ++group) {
        std::vector<size_t> taken;
        for (int64_t step = group; step < count; step += c.separation) taken.push_back(static_cast<size_t>(step));
        most = std::max(most, most_moved(matrix, taken, static_cast<size_t>(count)));
      }
      EXPECT_LE(most, charged * (1 + 1e-13)) << c.separation << ", " << count;
      EXPECT_GE(most, charged * (1 - 1e-12)) << "the first group moves as much as is charged";
    }
  }
}

// Why a unit's steps must be as far apart as is charged.
TEST(BltRows, AUnitThatComesOftenerMovesMore) {
  const Case& c = kCases[0];
  const BltRows rows = rows_of(c);
  EXPECT_GT(most_moved(matrix_of(c), {0, 2, 4, 6, 8}, 9), 1.2 * charged_square(rows, 9) * rows.norm() * rows.norm());
}

TEST(BltRows, AreTheirDefinitionRoundedUp) {
  const Case c{{0.1F, 0.03F, 0.01F}, {0.5F, 0.99F, 0.9999F}, 17, 5000};
  const BltRows rows = rows_of(c);
  std::vector<long double> exact;
  long double squares = 0;
  for (int64_t r = 0; r < c.steps; ++r) {
    long double coefficient = r == 0 ? 1 : 0;
    for (size_t j = 0; r > 0 && j < 3; ++j) {
      coefficient += static_cast<long double>(c.outputs[j]) *
                     std::pow(static_cast<long double>(c.decays[j]), static_cast<long double>(r - 1));
    }
    exact.push_back(r < c.separation ? coefficient : coefficient + exact[static_cast<size_t>(r - c.separation)]);
    EXPECT_GE(static_cast<long double>(rows.row(r)), exact.back());
    EXPECT_LE(static_cast<long double>(rows.row(r)), exact.back() * (1 + 1e-11L));
    squares += exact.back() * exact.back();
  }
  EXPECT_NEAR(rows.norm(), static_cast<double>(std::sqrt(squares)), 1e-11 * rows.norm());
}

TEST(BltRows, OfAWholeRunAreOneGaussianOfTheNoiseMultiplier) {
  for (const Case& c : kCases) {
    const BltRows rows = rows_of(c);
    EXPECT_GE(charged_square(rows, c.steps), 1);
    EXPECT_LE(charged_square(rows, c.steps), 1 + 1e-12);
    const auto engine = make_accountant("contour", Adjacency::kZeroOut),
               whole = make_accountant("contour", Adjacency::kZeroOut);
    for (int64_t r = 0; r < c.steps; ++r) engine->compose(GaussianEvent{rows.charged(r, NoiseMultiplier(0.8))}, 1);
    whole->compose(GaussianEvent{NoiseMultiplier(0.8)}, 1);
    EXPECT_GE(engine->epsilon(Delta(1e-6)).upper, whole->epsilon(Delta(1e-6)).lower);
    EXPECT_NEAR(engine->epsilon(Delta(1e-6)).upper, whole->epsilon(Delta(1e-6)).upper, 1e-9);
  }
}

// Coefficients too small for a double's digits: no row is free.
TEST(BltRows, ThatUnderflowAreChargedSomething) {
  const BltRows rows({0.5}, {1e-30}, 1000, 100);
  EXPECT_EQ(rows.row(50), 1e-12);
  EXPECT_GT(rows.charged(50, NoiseMultiplier(1)).value(), 0);
}

TEST(BltRows, RefuseWhatIsNone) {
  const auto refused = [](const Case& c, const char* rule) {
    EXPECT_THAT([&] { (void)rows_of(c); }, ThrowsMessage<std::invalid_argument>(HasSubstr(rule)));
  };
  refused({{}, {}, 3, 9}, "there must be from 1 to 16 buffers, got 0");
  refused({Numbers(17, 0.1), Numbers(17, 0.1), 3, 9}, "buffers, got 17");
  refused({{0.1}, {0.5, 0.5}, 3, 9}, "each output must have a decay, got 1 and 2");
  refused({{-0.1}, {0.5}, 3, 9}, "an output must lie in [0, 1]");
  refused({{NAN}, {0.5}, 3, 9}, "an output must lie in [0, 1]");
  refused({{0.1}, {1.0}, 3, 9}, "a decay must be >= 0 and below 1");
  refused({{0.1}, {-0.5}, 3, 9}, "a decay must be >= 0 and below 1");
  refused({{0.1}, {0.5}, 0, 9}, "at least 1 apart, got 0");
  refused({{0.1}, {0.5}, 3, 0}, "from 1 to 100000 steps, got 0");
  refused({{0.1}, {0.5}, 3, 1'000'001}, "steps, got 1000001");
}

// ---------------------------------------------------------------------------------------------------------------
// Ledgers and reports

json header_of() {
  return {{"adjacency", "zero-out"},
          {"noise_multiplier", 2.0},
          {"noise_blt", {{"outputs", {0.3, 0.1}}, {"decays", {0.9, 0.5}}, {"separation", 4}}},
          {"units", 40},
          {"expected_batch", 10},
          {"planned_steps", 8},
          {"facts", {{"sampler", {{"executed", "cyclic"}}}}}};
}

BltPlan plan_of() { return *blt_plan(header_of()); }

// Steps and the rows they are charged as; an epoch begins before each row of `epochs`.
LedgerContents ledger_of(const std::vector<std::pair<int64_t, int64_t>>& charged,
                         const std::vector<size_t>& epochs = {}, const json& header = header_of()) {
  const BltPlan plan = plan_of();
  LedgerContents ledger{.header = header, .head = "head", .header_hash = "header"};
  std::map<int64_t, int64_t> attempts;
  int64_t sequence = 0;
  for (size_t i = 0; i < charged.size(); ++i) {
    if (std::find(epochs.begin(), epochs.end(), i) != epochs.end()) {
      ledger.epochs.push_back({.sequence = ++sequence,
                               .number = static_cast<int64_t>(ledger.epochs.size()) + 1,
                               .step = charged[i].first,
                               .run_id = "r",
                               .key = json::object(),
                               .hash = "e"});
    }
    ledger.entries.push_back({.sequence = ++sequence,
                              .step = charged[i].first,
                              .attempt = attempts[charged[i].first]++,
                              .event = GaussianEvent{plan.rows.charged(charged[i].second, plan.sigma)},
                              .hash = "h"});
  }
  return ledger;
}

TEST(BltLedger, KnowsTheRowOfEachRelease) {
  EXPECT_THAT(blt_rows_of(ledger_of({{0, 0}, {1, 1}, {2, 2}}), plan_of()), ElementsAre(0, 1, 2));
  EXPECT_THAT(blt_rows_of(ledger_of({{0, 0}, {1, 1}, {1, 0}, {2, 1}}), plan_of()), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(blt_rows_of(ledger_of({{0, 0}, {1, 1}, {2, 0}, {3, 1}}, {2}), plan_of()), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(blt_rows_of(ledger_of({{0, 0}, {1, 0}, {2, 1}}), plan_of()), ElementsAre(0, 0, 1)) << "a lost batch";
}

TEST(BltLedger, HasNoRowThatDoesNotFollow) {
  const auto refused = [](const LedgerContents& ledger, const char* line) {
    EXPECT_THAT([&] { (void)blt_rows_of(ledger, plan_of()); },
                ThrowsMessage<std::invalid_argument>(
                    HasSubstr("must be charged as the row of its chain, " + std::string(line))));
  };
  refused(ledger_of({{0, 1}}), "line 1");
  refused(ledger_of({{0, 0}, {1, 2}}), "line 2");
  refused(ledger_of({{0, 0}, {2, 1}}), "line 2");
  refused(ledger_of({{0, 0}, {1, 1}}, {1}), "line 3");  // an epoch ends a chain
  LedgerContents free = ledger_of({{0, 0}, {1, 1}});
  free.entries[1].event = GaussianEvent{NoiseMultiplier(1e6)};
  refused(free, "line 2");
  free.entries[1].event = PoissonGaussianEvent{SamplingRate(0.1), NoiseMultiplier(2)};
  refused(free, "line 2");
}

TEST(BltReport, IsOfTheRowsThatWereReleased) {
  const auto run = ledger_of({{0, 0}, {1, 1}, {2, 2}, {1, 0}, {2, 1}}, {3});
  const json built = build_report(run, Delta(1e-6), json::object());
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  for (const int64_t row : {0, 1, 2, 0, 1}) {
    engine->compose(GaussianEvent{plan_of().rows.charged(row, plan_of().sigma)}, 1);
  }
  EXPECT_TRUE(built.at("guarantee").at("applies").get<bool>()) << built.at("guarantee");
  EXPECT_EQ(built.at("guarantee").at("epsilon").at("upper").get<double>(), engine->epsilon(Delta(1e-6)).upper);
  EXPECT_EQ(built.at("sampler").at("assumed"), "cyclic");
  const std::string assumptions = built.at("assumptions").dump();
  EXPECT_THAT(assumptions, HasSubstr("one remainder by the separation of noise_blt"));
  EXPECT_THAT(assumptions, HasSubstr("weighted by noise_blt in the header"));
  for (const json& assumption : built.at("assumptions")) {
    if (assumption.at("checked").get<bool>()) {
      EXPECT_TRUE(assumption.at("holds").get<bool>()) << assumption;
    }
  }
  for (const Finding& finding : verify_report(run, built)) {
    EXPECT_NE(finding.verdict, Finding::Verdict::kDiffers) << finding.what;
  }
}

TEST(BltReport, IsVoidWhereRowsAreNotDerived) {
  const auto expect_void = [](const LedgerContents& ledger, const char* reason) {
    const json built = build_report(ledger, Delta(1e-6), json::object());
    EXPECT_FALSE(built.at("guarantee").at("applies").get<bool>()) << reason;
    EXPECT_THAT(built.at("guarantee").at("reasons").dump(), HasSubstr(reason));
  };
  expect_void(ledger_of({{0, 0}, {2, 1}}), "must be charged as the row of its chain");
  json header = header_of();
  header["adjacency"] = "add-or-remove";
  expect_void(ledger_of({{0, 0}}, {}, header), "noise_blt is accounted under zero-out adjacency alone");
  header = header_of();
  header["noise_bands"] = {1, 0.5};
  expect_void(ledger_of({{0, 0}}, {}, header), "noise_blt cannot be combined with noise_bands");
  header = header_of();
  header["noise_blt"]["decays"] = {0.9, 1.5};
  expect_void(ledger_of({{0, 0}}, {}, header), "a decay must be >= 0 and below 1");
  header["noise_blt"] = "many";
  expect_void(ledger_of({{0, 0}}, {}, header), "noise_blt must have outputs, decays and separation");
  header = header_of();
  header["facts"]["sampler"]["executed"] = "poisson";
  expect_void(ledger_of({{0, 0}}, {}, header), "is not the cyclic sampler");
}

TEST(BltReceipt, IsRefused) {
  EXPECT_THAT(
      [] {
        (void)make_receipt(ledger_of({{0, 0}}), Delta(1e-6), Epsilon(3));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("got one with noise buffers")));
}

}  // namespace
}  // namespace ghostshard::accountant
