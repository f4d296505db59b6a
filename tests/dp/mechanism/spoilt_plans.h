// Configurations from which no plan is made: each with what is spoilt and what its message says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>

#include "dp/mechanism/plan.h"

namespace ghostshard::tests {

inline dp::DpConfig good_config() {
  return {.units = 10000, .expected_batch = 500, .steps = 100, .target_epsilon = accountant::Epsilon(4.0)};
}

struct SpoiltPlan {
  const char* name;
  std::function<void(dp::DpConfig&)> spoil;
  const char* message;
};
inline void PrintTo(const SpoiltPlan& c, std::ostream* out) { *out << c.name; }
inline std::string spoilt_part(const testing::TestParamInfo<SpoiltPlan>& info) { return info.param.name; }

inline void expect_refused(const SpoiltPlan& plan, dp::DpConfig config) {
  plan.spoil(config);
  EXPECT_THAT([&] { (void)dp::DpPlan::make(config); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr(plan.message)));
}

}  // namespace ghostshard::tests
