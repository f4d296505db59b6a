#include "accountant/blt_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();  // twice what one operation errs by, relatively

void require(bool holds, const std::string& rule, const std::string& value) {
  if (!holds) throw std::invalid_argument("noise buffers: " + rule + ", got " + value);
}

void check(const std::vector<double>& outputs, const std::vector<double>& decays, int64_t separation, int64_t steps) {
  require(separation >= 1, "steps of one unit must be at least 1 apart", std::to_string(separation));
  require(steps >= 1 && steps <= BltRows::kMostSteps,
          "a run must have from 1 to " + std::to_string(BltRows::kMostSteps) + " steps", std::to_string(steps));
  require(!outputs.empty() && outputs.size() <= BltRows::kMostBuffers,
          "there must be from 1 to " + std::to_string(BltRows::kMostBuffers) + " buffers",
          std::to_string(outputs.size()));
  require(outputs.size() == decays.size(), "each output must have a decay",
          std::to_string(outputs.size()) + " and " + std::to_string(decays.size()));
  for (const double output : outputs)
    require(output >= 0 && output <= 1, "an output must lie in [0, 1]", std::to_string(output));
  for (const double decay : decays)
    require(decay >= 0 && decay < 1, "a decay must be >= 0 and below 1", std::to_string(decay));
}

constexpr double kLeastRow = 1e-12;  // what is too small for a double's digits is charged as this

// No negative number comes up, so relative errors of terms carry over to their sums.
double rounded_up(double value, double operations) { return value * (1 + (operations + 1) * kRounding); }

}  // namespace

BltRows::BltRows(const std::vector<double>& outputs, const std::vector<double>& decays, int64_t separation,
                 int64_t steps) {
  check(outputs, decays, separation, steps);
  const auto apart = static_cast<size_t>(separation), buffers = outputs.size();
  std::vector<double> terms = outputs;  // ω_j·θ_j^(i−1)
  rows_.reserve(static_cast<size_t>(steps));
  double squares = 0;
  for (size_t r = 0; r < static_cast<size_t>(steps); ++r) {
    double coefficient = r == 0 ? 1 : 0;
    for (size_t j = 0; r > 0 && j < buffers; ++j) {
      coefficient += terms[j];
      terms[j] *= decays[j];
    }
    const double own = r < apart ? coefficient : coefficient + rows_[r - apart];
    rows_.push_back(own);
    squares += own * own;
  }
  // A coefficient has at most r products and as many additions as buffers; a row one addition for each unit's step.
  for (size_t r = 0; r < rows_.size(); ++r) {
    const size_t earlier = apart > 0 ? r / apart : 0;  // steps of the unit
    const auto operations = static_cast<double>(r + buffers + earlier + 1);
    rows_[r] = std::max(rounded_up(rows_[r], operations), kLeastRow);
  }
  norm_ = std::sqrt(squares);
}

NoiseMultiplier BltRows::charged(int64_t row, NoiseMultiplier sigma) const {
  const double exact = sigma.value() * norm_ / this->row(row);
  return NoiseMultiplier(exact * (1 - 4 * kRounding));
}

std::optional<BltPlan> blt_plan(const nlohmann::json& header) {
  const auto stated = header.find("noise_blt");
  if (stated == header.end()) return std::nullopt;
  try {
    return BltPlan{.rows = BltRows(stated->at("outputs").get<std::vector<double>>(),
                                   stated->at("decays").get<std::vector<double>>(),
                                   stated->at("separation").get<int64_t>(), header.at("planned_steps").get<int64_t>()),
                   .sigma = NoiseMultiplier(header.at("noise_multiplier").get<double>())};
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(std::string("noise_blt must have outputs, decays and separation, beside planned_steps "
                                            "and noise_multiplier: ") +
                                error.what());
  }
}

std::vector<int64_t> blt_rows_of(const LedgerContents& ledger, const BltPlan& plan) {
  std::vector<int64_t> rows;
  auto epoch = ledger.epochs.begin();
  const LedgerEntry* before = nullptr;
  for (const LedgerEntry& entry : ledger.entries) {
    bool follows = before != nullptr && entry.step == before->step + 1;
    for (; epoch != ledger.epochs.end() && epoch->sequence < entry.sequence; ++epoch) follows = false;
    const auto costs = [&](int64_t row) {
      return entry.event == Event(GaussianEvent{plan.rows.charged(row, plan.sigma)});
    };
    if (follows && rows.back() + 1 < plan.rows.steps() && costs(rows.back() + 1)) {
      rows.push_back(rows.back() + 1);
    } else if (costs(0)) {
      rows.push_back(0);
    } else {
      throw std::invalid_argument("a release of a run with noise_blt must be charged as the row of its chain, line " +
                                  std::to_string(entry.sequence) + " is not");
    }
    before = &entry;
  }
  return rows;
}

}  // namespace ghostshard::accountant
