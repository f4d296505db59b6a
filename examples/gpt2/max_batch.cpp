#include "examples/gpt2/max_batch.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

#include "accountant/calibration.h"

namespace ghostshard::gpt2 {
namespace {

constexpr const char* kAuto = "auto";

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int64_t affordable(const dp::DpConfig& config) {
  const dp::DpPlan whole = dp::DpPlan::make(config);
  const accountant::EpsilonBound spent = whole.epsilon_after(config.steps);
  if (!(std::isfinite(spent.upper) && spent.upper > 0)) {
    throw std::invalid_argument("--max-batch auto needs a budget whose epsilon is finite: give a number of texts");
  }
  return accountant::affordable_cap(
      {config.accountant, config.adjacency, accountant::Epsilon(spent.upper), whole.delta()}, config.units,
      whole.sampling_rate(), config.steps);
}

}  // namespace

void add_max_batch(CLI::Option_group* group, Options& options) {
  group->add_option("--max-batch", options.max_batch,
                    "No step takes more texts than this: of a larger draw a part stays, chosen at random, and every "
                    "step has as many microbatches; auto: the smallest that costs at most 0.1 % more noise");
}

void check_max_batch(const Options& options) {
  if (options.max_batch.empty()) return;
  if (options.non_private) {
    throw std::invalid_argument("--max-batch cuts the batches of private steps: --non-private has none");
  }
  if (options.max_batch == kAuto) return;
  const auto cap = whole_number(options.max_batch);
  if (!cap || *cap < options.expected_batch) {
    throw std::invalid_argument("--max-batch must be auto or a number of texts, at least --expected-batch (" +
                                std::to_string(options.expected_batch) + "), got '" + options.max_batch + "'");
  }
}

void set_max_batch(dp::DpConfig& config, const Options& options) {
  if (options.max_batch.empty()) return;
  config.maximum_batch = options.max_batch == kAuto ? affordable(config) : whole_number(options.max_batch);
}

}  // namespace ghostshard::gpt2
