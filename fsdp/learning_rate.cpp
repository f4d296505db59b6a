#include "fsdp/learning_rate.h"

#include <cmath>
#include <numbers>
#include <sstream>
#include <stdexcept>

namespace ghostshard::fsdp {
namespace {

template <typename Value>
void require(bool holds, const char* rule, Value found) {
  if (holds) return;
  std::ostringstream text;
  text << rule << ", got " << found;
  throw std::invalid_argument(text.str());
}

}  // namespace

void LearningRateSchedule::check() const {
  // Written so that a NaN fails.
  require(peak > 0 && std::isfinite(peak), "the learning rate must be finite and > 0", peak);
  require(steps >= 1, "a schedule must have at least 1 step", steps);
  require(warmup_steps >= 0, "warm-up steps must be >= 0", warmup_steps);
  if (!(warmup_steps < steps)) {
    throw std::invalid_argument("warm-up steps must be fewer than the run's " + std::to_string(steps) + " steps, got " +
                                std::to_string(warmup_steps));
  }
  require(minimum >= 0 && minimum <= peak, "the minimum learning rate must lie between 0 and the learning rate",
          minimum);
  require(minimum == 0 || shape != ScheduleShape::kConstant,
          "a constant schedule has no minimum learning rate: it must be 0", minimum);
}

double LearningRateSchedule::at(int64_t step) const {
  require(step >= 0 && step < steps, "the step must be one of the schedule's, from 0", step);
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  const double x = static_cast<double>(step - warmup_steps) / static_cast<double>(steps - warmup_steps);
  switch (shape) {
    case ScheduleShape::kConstant:
      return peak;
    case ScheduleShape::kLinear:
      return peak - (peak - minimum) * x;
    case ScheduleShape::kCosine:
      return minimum + (peak - minimum) * (1 + std::cos(std::numbers::pi * x)) / 2;
  }
  throw std::logic_error("a schedule's shape is one of the enumerators");
}

ScheduleShape schedule_shape(const std::string& name) {
  if (name == "constant") return ScheduleShape::kConstant;
  if (name == "linear") return ScheduleShape::kLinear;
  if (name == "cosine") return ScheduleShape::kCosine;
  throw std::invalid_argument("a learning-rate schedule must be constant, linear or cosine, got '" + name + "'");
}

}  // namespace ghostshard::fsdp
